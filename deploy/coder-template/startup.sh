#!/bin/sh
# Prepares a workspace: the repository, and the endpoint that says what the workspace is about.
set -eu

work="$HOME/work"
if [ -n "${REPOSITORY:-}" ] && [ ! -d "$work/.git" ]; then
  git clone "$REPOSITORY" "$work"
fi
mkdir -p "$work" "$HOME/.local/bin"

crewkit=$(command -v crewkit || true)
if [ -z "$crewkit" ] && [ -n "${CREWKIT_URL:-}" ]; then
  crewkit="$HOME/.local/bin/crewkit"
  if [ ! -x "$crewkit" ]; then
    curl --fail --silent --show-error --location --output "$crewkit.part" "$CREWKIT_URL"
    chmod +x "$crewkit.part"
    mv "$crewkit.part" "$crewkit"
  fi
fi

# Without the program the fleet falls back to Coder's agent metadata and the web terminal.
if [ -n "$crewkit" ]; then
  cd "$work"
  nohup "$crewkit" metadata serve --listen 127.0.0.1:8000 >"$HOME/.crewkit-metadata.log" 2>&1 &
fi

LC_ALL=C; export LC_ALL; umask 022; trap '' HUP
k=.crewkit/kit
stop() { printf 'error %s\n' "$*"; echo crewkit-end; exit 1; }
for c in base64 dd find sed; do command -v $c >/dev/null 2>&1 || stop "the workspace has no $c"; done
if command -v sha256sum >/dev/null 2>&1; then hash() { sha256sum; }
elif command -v shasum >/dev/null 2>&1; then hash() { shasum -a 256; }
else stop 'the workspace has neither sha256sum nor shasum'; fi
if [ -L .crewkit ] || [ -L $k ]; then stop '.crewkit is a link'; fi

# What is at a place: sets x to hash and mode of a file, to `- -`, or to `other -`. A place below a link is not ours.
see() {
  d=$1
  while :; do
    case $d in */*) d=${d%/*} ;; *) break ;; esac
    if [ -L "./$d" ] || { [ -e "./$d" ] && [ ! -d "./$d" ]; }; then x='other -'; return; fi
  done
  if [ -L "./$1" ]; then x='other -'
  elif [ -f "./$1" ]; then
    x=$(hash <"./$1") || stop "cannot read $1"
    if [ -x "./$1" ]; then x="${x%% *} 755"; else x="${x%% *} 644"; fi
  elif [ -e "./$1" ]; then x='other -'
  else x='- -'; fi
}

show() { while IFS= read -r f; do see "$f"; printf 'at %s %s\n' "$x" "$f"; done; }

# Whether a process that deploys is still there.
alive() { [ -n "$1" ] && kill -0 "$1" 2>/dev/null && [ -z "$(find "$2" -prune -mmin +10 2>/dev/null)" ]; }

look() {
  if alive "$(readlink $k/lock 2>/dev/null)" $k/lock; then echo busy; fi
  for d in $k/in.*; do if alive "${d##*.}" "$d"; then echo busy; fi; done
  if [ -d $k/ready ]; then echo pending; fi
  if [ -d $k/undo ]; then echo undo; fi
  if [ -s $k/manifest ]; then
    printf 'manifest '; base64 <$k/manifest | tr -d '\n'; echo
    sed -n 's/^file [0-9a-f]* [0-9]* //p' $k/manifest | show
  fi
}

# Keeps the files of the kit out of the status of the repository; those that it tracks stay in.
exclude() {
  e=$(git rev-parse --git-path info/exclude 2>/dev/null) || return 0
  p=$(git rev-parse --show-prefix 2>/dev/null) || return 0
  mkdir -p "${e%/*}" && { [ -e "$e" ] || : >"$e"; } || return 0
  {
    sed '/^# crewkit kit begin$/,/^# crewkit kit end$/d' "$e"
    echo '# crewkit kit begin'
    sed -n 's/^file [0-9a-f]* [0-9]* //p' $k/manifest | while IFS= read -r f; do
      printf '/%s%s\n' "$p" "$f" | sed 's/[][*?\\]/\\&/g'
    done
    echo '# crewkit kit end'
  } >"$e.$$" && mv -f "$e.$$" "$e" || rm -f "$e.$$"
}

# One deployment at a time. A lock whose process is gone, or that is older than any deployment can be, is nobody's.
lock() {
  w=0
  until ln -s $$ $k/lock 2>/dev/null; do
    w=$((w + 1)); [ $w -le 20 ] || stop 'another deployment into this workspace is under way'
    if alive "$(readlink $k/lock 2>/dev/null)" $k/lock; then sleep 1; else rm -f $k/lock; fi
  done
  trap 'rm -f $k/lock' EXIT
}
unlock() { rm -f $k/lock; trap - EXIT; }

# Carries out what is ready, also when an earlier script was ended in the middle of it. A place that is neither as it was
# nor as it is to be was changed by somebody meanwhile, and stays.
finish() {
  r=$k/ready; bad=
  [ -d $r ] || return 0
  if [ -f $r/plan ]; then
    while read -r i z bs bm as am f; do
      see "$f"
      [ "$x" = "$bs $bm" ] || continue
      if [ "$as" = - ]; then
        rm -f "./$f" || bad=$f
        d=$f
        while :; do
          case $d in */*) d=${d%/*} ;; *) break ;; esac
          rmdir "./$d" 2>/dev/null || break
        done
      elif [ -f $r/files/$i ]; then
        case $f in */*) mkdir -p "./${f%/*}" || bad=$f ;; esac
        mv -f $r/files/$i "./$f" || bad=$f
      fi
    done <$r/plan
  fi
  [ -z "$bad" ] || stop "cannot write $bad; the rest of the kit is there, and equipping again goes on"
  if [ -f $r/manifest ]; then mv -f $r/manifest $k/manifest || stop 'cannot record the kit'; fi
  if [ -f $k/manifest ]; then exclude; fi
  if [ -d $r/undo ]; then rm -rf $k/undo; mv $r/undo $k/undo; fi
  mv $r $k/done.$$ && rm -rf $k/done.$$
}

# Makes the deployment in $n ready and carries it out. Up to the rename nothing in the workspace is changed. $1 says what
# happens to a place that is not as the plan takes it to be: `refuse` everything, or `keep` it.
commit() {
  lock
  finish
  : >$n/undo/plan; : >$n/will
  while read -r i z bs bm as am f; do
    see "$f"
    if [ "$x" != "$bs $bm" ]; then
      if [ "$1" = keep ]; then printf 'kept %s\n' "$f"; continue; fi
      rm -rf $n; echo stale; unlock; return 1
    fi
    d=./$f
    while :; do d=${d%/*}; if [ -d "$d" ]; then break; fi; done
    if [ ! -w "$d" ]; then rm -rf $n; stop "cannot write to $d"; fi
    if [ "$as" != - ]; then
      chmod $am $n/files/$i && x=$(hash <$n/files/$i) || x=
      if [ "${x%% *}" != "$as" ]; then rm -rf $n; stop "what arrived is not what was sent ($f)"; fi
    fi
    if [ "$bs" != - ]; then cp -p "./$f" $n/undo/files/$i || { rm -rf $n; stop "no room to keep $f"; }; fi
    printf '%s 0 %s %s %s %s %s\n' "$i" "$as" "$am" "$bs" "$bm" "$f" >>$n/undo/plan || stop 'no room'
    printf '%s 0 %s %s %s %s %s\n' "$i" "$bs" "$bm" "$as" "$am" "$f" >>$n/will || stop 'no room'
  done <$n/plan
  if [ -f $k/manifest ]; then cp -p $k/manifest $n/undo/manifest; else : >$n/undo/manifest; fi || stop 'no room'
  mv -f $n/will $n/plan && mv $n $k/ready || stop 'cannot make the kit ready'
  finish
  unlock
  echo done
}

# A place for what comes in. What others left there long ago goes.
incoming() {
  mkdir -p $k && [ -f .crewkit/.gitignore ] || printf '*\n' >.crewkit/.gitignore || stop "cannot write to $k"
  find $k -name 'in.*' -prune -mmin +10 -exec rm -rf {} + 2>/dev/null
  n=$k/in.$$
  rm -rf $n; mkdir $n || stop "cannot write to $k"
}

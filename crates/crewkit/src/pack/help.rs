//! The commands as data, read from the parser itself so that they cannot differ from it.

use clap::CommandFactory as _;
use crewkit_pack::commands::{Argument, CommandRow, GLOBAL_ARGUMENTS};

use super::args::Agentpack;

/// Every word a command consists of, for names in answers.
pub(super) const KNOWN_WORDS: [&str; 29] = [
    "init",
    "add",
    "migrate",
    "remove",
    "lock",
    "fetch",
    "update",
    "plan",
    "diff",
    "preview",
    "deploy",
    "status",
    "rollback",
    "snapshots",
    "list",
    "show",
    "prune",
    "doctor",
    "overlay",
    "edit",
    "rebase",
    "path",
    "explain",
    "help",
    "schema",
    "completions",
    "mcp",
    "serve",
    "pack",
];

/// The flags every command takes.
pub(super) fn globals() -> Vec<Argument> {
    let command = Agentpack::command();
    let mut arguments: Vec<Argument> = command
        .get_arguments()
        .filter(|argument| GLOBAL_ARGUMENTS.contains(&argument.get_id().as_str()))
        .map(describe)
        .collect();
    arguments.sort_by(|a, b| a.id.cmp(&b.id));
    arguments
}

/// All commands, alphabetical.
pub(super) fn rows() -> Vec<CommandRow> {
    let mut rows = Vec::new();
    collect(&Agentpack::command(), &mut Vec::new(), &mut rows);
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    rows
}

fn collect(command: &clap::Command, path: &mut Vec<String>, rows: &mut Vec<CommandRow>) {
    for sub in command.get_subcommands() {
        path.push(sub.get_name().to_owned());
        if sub.has_subcommands() {
            collect(sub, path, rows);
        } else {
            let mut arguments: Vec<Argument> = sub
                .get_arguments()
                .filter(|argument| {
                    let id = argument.get_id().as_str();
                    !GLOBAL_ARGUMENTS.contains(&id) && !matches!(id, "help" | "version")
                })
                .map(describe)
                .collect();
            arguments.sort_by(|a, b| a.id.cmp(&b.id));
            rows.push(CommandRow { path: path.clone(), arguments });
        }
        path.pop();
    }
}

fn describe(argument: &clap::Arg) -> Argument {
    Argument {
        id: argument.get_id().to_string(),
        kind: if argument.get_action().takes_values() { "option" } else { "flag" },
        long: argument.get_long().map(ToOwned::to_owned),
        short: argument.get_short(),
        required: argument.is_required_set(),
    }
}

/// The commands for people.
pub(super) fn text() -> String {
    Agentpack::command().render_long_help().to_string()
}

/// The commands as a Markdown page.
pub(super) fn markdown() -> String {
    let mut page = String::from("# agentpack commands\n");
    let root = Agentpack::command();
    let mut stack: Vec<(String, clap::Command)> = vec![("agentpack".to_owned(), root)];
    let mut sections = Vec::new();
    while let Some((name, command)) = stack.pop() {
        for sub in command.get_subcommands() {
            stack.push((format!("{name} {}", sub.get_name()), sub.clone()));
        }
        if !command.has_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let mut command = command.bin_name(name.clone());
            sections.push(format!("\n## `{name}`\n\n{about}\n\n```text\n{}\n```\n", command.render_usage()));
        }
    }
    sections.sort();
    page.extend(sections);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_holds_together_and_every_word_is_known() {
        Agentpack::command().debug_assert();
        for row in rows() {
            for word in &row.path {
                assert!(KNOWN_WORDS.contains(&word.as_str()), "{word}");
            }
        }
        assert_eq!(globals().len(), GLOBAL_ARGUMENTS.len());
    }

    #[test]
    fn every_mutating_command_exists() {
        let ids: Vec<String> = rows().iter().map(|row| row.path.join(" ")).collect();
        for id in crewkit_pack::commands::MUTATING {
            let command = id.split(" --").next().unwrap();
            assert!(ids.iter().any(|known| known == command), "{id}");
        }
    }
}

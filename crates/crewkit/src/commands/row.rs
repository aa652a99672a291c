//! Commands that run one operation each. Their names and arguments come from the operation's row in the table.

use std::sync::{Arc, OnceLock};

use clap::builder::ArgAction;
use clap::error::ErrorKind;
use clap::{Arg, ArgGroup, ArgMatches, Command};
use crewkit_server::ops::{Approval, Catalog, Entry, JsonObject};
use serde_json::Value;

/// What a command says otherwise than the row of its operation.
#[derive(Debug, Clone, Copy)]
pub struct Wording {
    /// The operation.
    pub operation: &'static str,
    /// What the command does; the operation's description if empty.
    pub about: &'static str,
    /// The properties given by position, if they differ from those of the row.
    pub positional: Option<&'static [&'static str]>,
    /// Names and help that differ from those of the schema.
    pub arguments: &'static [Argument],
    /// Properties of which exactly one has to be given.
    pub one_of: &'static [&'static str],
    /// Asked on a terminal before the operation runs; `{}` stands for the first argument.
    pub question: Option<&'static str>,
    /// Whether `--follow` shows what is added later.
    pub follows: bool,
    /// Another path of the same command.
    pub alias: Option<&'static [&'static str]>,
}

/// How a property of the schema is spelled on the command line.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// The property.
    pub property: &'static str,
    /// The option; `no-…` turns off what is on by default. Empty hides the property.
    pub name: &'static str,
    /// What it is; the schema's description if empty.
    pub help: &'static str,
}

/// A command as it was given.
#[derive(Debug, Clone)]
pub struct Given {
    /// The operation to run.
    pub operation: &'static str,
    /// Its arguments.
    pub arguments: JsonObject,
    /// What to ask before, on a terminal.
    pub question: Option<String>,
    /// Whether to show what is added later.
    pub follow: bool,
}

impl Wording {
    /// A command that says what its row says.
    pub const fn of(operation: &'static str) -> Self {
        Self {
            operation,
            about: "",
            positional: None,
            arguments: &[],
            one_of: &[],
            question: None,
            follows: false,
            alias: None,
        }
    }
}

/// The commands of one group: the rows whose path begins with its name.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The first word of the commands.
    pub name: &'static str,
    /// What they say otherwise than their rows.
    pub wordings: &'static [Wording],
}

struct Row {
    path: &'static [&'static str],
    positional: &'static [&'static str],
    entry: Arc<Entry>,
    wording: Wording,
}

impl Group {
    fn rows(&self) -> Vec<Row> {
        static CATALOG: OnceLock<Option<Catalog>> = OnceLock::new();
        let catalog = CATALOG.get_or_init(|| Catalog::product().ok());
        let mut rows = Vec::new();
        for name in catalog.iter().flat_map(Catalog::entries).map(|entry| entry.operation.name) {
            let Some(entry) = catalog.as_ref().and_then(|catalog| catalog.get(name)) else { continue };
            let Some(cli) = entry.operation.doors.cli.filter(|cli| cli.path.first() == Some(&self.name))
            else {
                continue;
            };
            let wording = self.wordings.iter().find(|wording| wording.operation == name);
            let wording = wording.copied().unwrap_or(Wording::of(name));
            let positional = wording.positional.unwrap_or(cli.positional);
            for path in std::iter::once(cli.path).chain(wording.alias) {
                rows.push(Row { path: &path[1..], positional, entry: Arc::clone(entry), wording });
            }
        }
        rows
    }

    /// Adds the commands below `command`.
    pub fn augment(&self, mut command: Command) -> Command {
        for row in self.rows() {
            command = match *row.path {
                [name] => command.subcommand(row.command(name)),
                [group, name] if command.find_subcommand(group).is_some() => {
                    command.mut_subcommand(group, |group| group.subcommand(row.command(name)))
                }
                [group, name] => command.subcommand(
                    Command::new(group)
                        .about(format!("Manage {group}s"))
                        .subcommand_required(true)
                        .arg_required_else_help(true)
                        .subcommand(row.command(name)),
                ),
                _ => command,
            };
        }
        command
    }

    /// Whether a command begins with `name`.
    pub fn has(&self, name: &str) -> bool {
        self.rows().iter().any(|row| row.path.first() == Some(&name))
    }

    /// The command that was given.
    pub fn given(&self, matches: &ArgMatches) -> Result<Given, clap::Error> {
        let mut path = Vec::new();
        let mut level = matches;
        while let Some((next, below)) = level.subcommand() {
            path.push(next);
            level = below;
        }
        let row = self.rows().into_iter().find(|row| row.path == path);
        row.map(|row| row.given(level)).ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))
    }
}

impl Row {
    fn properties(&self) -> impl Iterator<Item = (&str, &Value)> {
        let properties = self.entry.input.get("properties").and_then(Value::as_object);
        properties.into_iter().flatten().map(|(property, schema)| (property.as_str(), schema))
    }

    fn is_required(&self, property: &str) -> bool {
        let required = self.entry.input.get("required").and_then(Value::as_array);
        required.into_iter().flatten().any(|name| name == property) || self.positional.contains(&property)
    }

    fn command(&self, name: &'static str) -> Command {
        let about =
            if self.wording.about.is_empty() { self.entry.operation.description } else { self.wording.about };
        let mut command = Command::new(name).about(about.trim_end_matches('.'));
        let positions = self
            .positional
            .iter()
            .filter_map(|name| self.properties().find(|(property, _)| property == name));
        let others = self.properties().filter(|(property, _)| !self.positional.contains(property));
        for (property, schema) in positions.chain(others) {
            command = command.args(self.argument(property, schema));
        }
        if !self.wording.one_of.is_empty() {
            command = command.group(ArgGroup::new("one_of").args(self.wording.one_of).required(true));
        }
        if self.wording.follows {
            command = command.arg(flag("follow", "Show new entries as they arrive").short('f'));
        }
        if self.wording.question.is_some() {
            command = command.arg(flag("yes", "Do not ask").short('y'));
        }
        command
    }

    /// The argument of a property. Returns `None` if the command line does not have it.
    fn argument(&self, property: &str, schema: &Value) -> Option<Arg> {
        let spelled = self.wording.arguments.iter().find(|argument| argument.property == property);
        let name = spelled.map_or_else(|| property.replace('_', "-"), |argument| argument.name.to_owned());
        if name.is_empty() || schema.get("const").is_some() {
            return None;
        }
        let described = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let help = spelled.map(|argument| argument.help).filter(|help| !help.is_empty()).unwrap_or(described);
        let arg = Arg::new(property.to_owned()).help(help.trim_end_matches('.').to_owned());
        let arg = arg.required(self.is_required(property));
        let arg = match kind(schema) {
            Kind::Flag => return Some(arg.long(name).action(ArgAction::SetTrue)),
            Kind::Number => arg.value_parser(clap::value_parser!(i64)).allow_negative_numbers(true),
            Kind::Text => arg,
            Kind::List => arg.action(ArgAction::Append),
        };
        let arg = arg.value_name(name.replace('-', "_").to_ascii_uppercase());
        Some(if self.positional.contains(&property) { arg } else { arg.long(name) })
    }

    fn given(&self, matches: &ArgMatches) -> Given {
        let mut arguments = JsonObject::new();
        for (property, schema) in self.properties() {
            if !matches.try_contains_id(property).unwrap_or(false) {
                continue;
            }
            let value: Option<Value> = match kind(schema) {
                Kind::Flag => {
                    let is_on = schema.get("default") == Some(&Value::Bool(true));
                    matches.get_flag(property).then_some(Value::Bool(!is_on))
                }
                Kind::Number => matches.get_one::<i64>(property).map(|&number| number.into()),
                Kind::Text => matches.get_one::<String>(property).map(|text| text.clone().into()),
                Kind::List => matches
                    .get_many::<String>(property)
                    .map(|items| items.map(|item| Value::String(item.clone())).collect()),
            };
            arguments.extend(value.map(|value| (property.to_owned(), value)));
        }
        let is_set = |name: &str| matches.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false);
        let subject = arguments.values().find_map(Value::as_str).unwrap_or_default();
        let question = self.wording.question.filter(|_| !is_set("yes"));
        let question = question.map(|question| question.replace("{}", subject));
        // Giving the command is the approval.
        if self.entry.operation.approval == Approval::Yes {
            arguments.insert("yes".to_owned(), true.into());
        }
        let follow = self.wording.follows && is_set("follow");
        Given { operation: self.entry.operation.name, arguments, question, follow }
    }
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flag,
    Number,
    Text,
    List,
}

fn kind(schema: &Value) -> Kind {
    let forms = schema.get("anyOf").and_then(Value::as_array);
    let named = schema.get("type").or_else(|| forms?.first()?.get("type"));
    // An optional property may have the type `["integer", "null"]`.
    match named.and_then(|named| named.as_str().or_else(|| named.get(0)?.as_str())) {
        Some("boolean") => Kind::Flag,
        Some("integer" | "number") => Kind::Number,
        Some("array") => Kind::List,
        _ => Kind::Text,
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches as _, Subcommand as _};
    use serde_json::json;

    use crate::commands::fleet::FleetCommand;

    fn parsed(words: &str) -> Result<serde_json::Value, clap::Error> {
        let command =
            FleetCommand::augment_subcommands(clap::Command::new("fleet").subcommand_required(true));
        let matches = command.try_get_matches_from(std::iter::once("fleet").chain(words.split(' ')))?;
        let given = FleetCommand::from_arg_matches(&matches)?.given();
        Ok(json!([given.operation, given.arguments]))
    }

    #[test]
    fn arguments_are_those_of_the_operation() {
        for (words, operation, arguments) in [
            ("show papi", "show_agent", json!({"agent_name": "papi"})),
            ("list --no-metadata --limit 2", "list_agents", json!({"include_metadata": false, "limit": 2})),
            ("list --status busy", "list_agents", json!({"status_filter": "busy"})),
            ("create a b --project p", "create_agent", json!({"name": "a", "project": "p", "spec": "b"})),
            ("start a b", "start_agent_task", json!({"agent_name": "a", "task_description": "b"})),
            ("log a --page 2", "show_agent_log", json!({"agent_name": "a", "page": 2})),
            ("wait a --timeout 5", "wait_for_agent", json!({"agent_name": "a", "timeout_seconds": 5})),
            ("project add x --name y", "project_add", json!({"path": "x", "name": "y"})),
            ("project list", "list_agent_projects", json!({})),
            (
                "equip --agent x --rollback",
                "equip_agents",
                json!({"agent_name": "x", "rollback": true, "yes": true}),
            ),
            (
                "equip --all --canary 1 --profile base",
                "equip_agents",
                json!({"all": true, "profile": "base", "canary": 1, "yes": true}),
            ),
        ] {
            assert_eq!(parsed(words).unwrap(), json!([operation, arguments]), "{words}");
        }
        for wrong in [
            "",
            "show",
            "show a b",
            "list --limit many",
            "create a",
            "project",
            "equip",
            "equip --profile base",
            "equip --all --agent x",
            "equip --all --project p",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_command_names_an_operation_and_explains_its_arguments() {
        let fleet = FleetCommand::augment_subcommands(clap::Command::new("fleet"));
        let groups = fleet
            .get_subcommands()
            .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
        for command in groups {
            assert!(!command.is_hide_set(), "{} has no operation", command.get_name());
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }
}

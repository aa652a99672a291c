//! Colours, where somebody looks at them.

use std::io::IsTerminal as _;

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Colour,
    Plain,
}

impl Style {
    /// Colours for a terminal, unless `NO_COLOR` says no.
    pub fn of_stdout() -> Self {
        Self::decide(std::io::stdout().is_terminal())
    }

    /// The same for standard error.
    pub fn of_stderr() -> Self {
        Self::decide(std::io::stderr().is_terminal())
    }

    fn decide(terminal: bool) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        if terminal && !refused && !dumb { Self::Colour } else { Self::Plain }
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Plain => text.to_owned(),
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }
}

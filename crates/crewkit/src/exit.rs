//! How the process ends, as a number scripts can rely on.

use std::process::ExitCode;

/// The documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok,
    /// Refused or failed; the message says why.
    Failed,
    /// The command line does not make sense.
    Usage,
    /// Asked with `--exit-code` whether something would change: yes.
    WouldChange,
    /// Ctrl-C was pressed; what runs on the server goes on.
    Interrupted,
}

impl Exit {
    /// Every code, with what it means.
    pub const TABLE: &'static [(Self, &'static str)] = &[
        (Self::Ok, "done"),
        (Self::Failed, "refused or failed; the message and its code say why"),
        (Self::Usage, "the command line does not make sense"),
        (Self::WouldChange, "asked with `--exit-code`: something would change"),
        (Self::Interrupted, "Ctrl-C was pressed; what runs on the server goes on"),
    ];

    /// The number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::WouldChange => 3,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

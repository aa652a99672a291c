//! `crewkit service …`: the unit that lets the system's service manager run `crewkit serve` for a home.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use crewkit_core::Code;
use serde_json::json;

use super::show;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;

/// `crewkit service …`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ServiceCommand {
    /// Write a service that runs `crewkit serve` for this home, and tell how to enable it.
    Install,
    /// Remove the service that `install` wrote.
    Uninstall,
    /// Show whether the service is there.
    Status,
}

/// The first line of what `install` writes. A file without it is somebody else's.
const MARK: &str = "Written by `crewkit service install`.";

/// A service as this system's manager knows it.
struct Service {
    file: PathBuf,
    text: String,
    enable: String,
    disable: String,
}

impl Service {
    fn of(home: &Path) -> Result<Self, Failure> {
        let unusable = |message: &str| Failure::new(Code::StateUnusable, message.to_owned());
        let program = std::env::current_exe().map_err(|error| unusable(&error.to_string()))?;
        let (program, home) = (program.display().to_string(), home.display().to_string());
        if [&program, &home].iter().any(|path| path.contains(['\n', '"', '\\', '<', '&'])) {
            return Err(unusable("The path of the program or of the home cannot be written into a service"));
        }
        let user = std::env::home_dir().ok_or_else(|| unusable("The user has no home directory"))?;
        if cfg!(target_os = "macos") {
            let file = user.join("Library/LaunchAgents/dev.crewkit.serve.plist");
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- {MARK} -->\n<plist version=\"1.0\"><dict>\n\
                 <key>Label</key><string>dev.crewkit.serve</string>\n<key>ProgramArguments</key><array>\
                 <string>{program}</string><string>serve</string><string>--home</string><string>{home}</string></array>\n\
                 <key>RunAtLoad</key><true/>\n<key>KeepAlive</key><true/>\n</dict></plist>\n"
            );
            let shown = file.display();
            let (enable, disable) =
                (format!("launchctl load -w {shown}"), format!("launchctl unload -w {shown}"));
            return Ok(Self { file, text, enable, disable });
        }
        let given = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let file = given.unwrap_or_else(|| user.join(".config")).join("systemd/user/crewkit.service");
        // In a unit, `%` begins a specifier.
        let (program, home) = (program.replace('%', "%%"), home.replace('%', "%%"));
        let text = format!(
            "# {MARK}\n[Unit]\nDescription=crewkit\n\n[Service]\nExecStart=\"{program}\" serve --home \"{home}\"\n\
             Restart=on-failure\n\n[Install]\nWantedBy=default.target\n"
        );
        let enable = "systemctl --user enable --now crewkit.service".to_owned();
        let disable = "systemctl --user disable --now crewkit.service".to_owned();
        Ok(Self { file, text, enable, disable })
    }

    /// What is in its place. `None` if there is nothing; refuses what `install` did not write.
    fn present(&self) -> Result<Option<String>, Failure> {
        let path = self.file.display();
        match std::fs::read_to_string(&self.file) {
            Ok(text) if text.contains(MARK) => Ok(Some(text)),
            Ok(_) => {
                let message = format!("{path} was not written by `crewkit service install`");
                Err(Failure::new(Code::StateUnusable, message).with_next(format!("move {path} away")))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn write(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(self.file.parent().unwrap_or(Path::new("/")))?;
        let draft = self.file.with_extension("new");
        std::fs::write(&draft, &self.text)?;
        std::fs::rename(&draft, &self.file)
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::new(Code::StateUnusable, format!("{}: {error}", self.file.display()))
    }
}

/// Runs one of the commands.
pub fn run(config: &Config, command: ServiceCommand, json: bool) -> Result<Exit, Failure> {
    let home = std::path::absolute(&config.home)
        .map_err(|error| Failure::new(Code::StateUnusable, format!("{}: {error}", config.home.display())))?;
    let service = Service::of(&home)?;
    let file = service.file.display();
    let present = service.present()?;
    match command {
        ServiceCommand::Install => {
            service.write().map_err(|error| service.failed(&error))?;
            show(&json!({"file": service.file, "enable": service.enable}), json, || {
                format!("Wrote {file}:\n\n{}\nEnable it: {}", service.text, service.enable)
            });
        }
        ServiceCommand::Uninstall => {
            if present.is_some() {
                std::fs::remove_file(&service.file).map_err(|error| service.failed(&error))?;
            }
            show(&json!({"file": service.file, "removed": present.is_some()}), json, || match present {
                Some(_) => format!("Removed {file}. If it was enabled: {}", service.disable),
                None => format!("There is no {file}."),
            });
        }
        ServiceCommand::Status => {
            let is_current = present.as_ref().map(|text| *text == service.text);
            let body =
                json!({"file": service.file, "installed": present.is_some(), "of_this_home": is_current});
            show(&body, json, || match is_current {
                None => format!("Not installed. Install it: crewkit service install ({file})"),
                Some(true) => format!("Installed for this home: {file}"),
                Some(false) => format!("{file} is for another home or another program."),
            });
        }
    }
    Ok(Exit::Ok)
}

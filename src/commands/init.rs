//! `hark init`: makes a first configuration from flags, from answers on a terminal, and from
//! defaults.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_server::{ListenAddress, ListenAddressFault};

use super::config;
use super::unfinished::unfinished;
use crate::config::{Config, client_setups};
use crate::location::{LocationArgs, SERVICE_CONFIG, SERVICES};
use crate::print;
use crate::stores::{AddressForm, StoreAddress, address_forms};
use crate::wrong_use::WrongUse;

const NETWORKS: &str = "The networks to serve, separated by commas";
const LISTEN: &str = "Address and port of the relay; 127.0.0.1 is for programs on this machine, such as a proxy, and \
     0.0.0.0 for every IPv4 address of the machine";
const URL: &str = "The address that clients use, such as wss://relay.example, with which they authenticate; wss:// needs a \
     proxy for TLS, or [tls]";
const NAME: &str = "The name of the relay, for clients and for the relay's page";
const ARCHIVE: &str =
    "The archive: a directory for files, or the address of a database without a password";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark init
  hark init --output hark.toml --data /srv/hark --url wss://relay.example --name 'My relay'
  hark init --store postgres://hark@localhost/hark --output -

On a terminal, asks for each value that no flag gives; an empty answer stands for the default in brackets. Without a \
terminal, these values are the defaults. --data and --store name the location of the archive.

The file has every setting with its documentation. The command checks the file as `hark config --check` does, \
and replaces an existing file only with --force.")]
pub(crate) struct InitArgs {
    #[arg(long, value_name = "NAMES", help = NETWORKS)]
    networks: Option<String>,
    #[arg(long, value_name = "ADDR:PORT", help = LISTEN)]
    listen: Option<String>,
    #[arg(long, value_name = "URL", help = URL)]
    url: Option<String>,
    #[arg(long, value_name = "TEXT", help = NAME)]
    name: Option<String>,
    /// The file to write; - prints the text [default: the file of --config, or else
    /// /etc/hark/hark.toml if it can be written, or else hark.toml in the current directory]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// A function that sets a value in the configuration, or returns the fault of the value.
type Apply = fn(&mut Config, &str, &[AddressForm]) -> Result<(), String>;

/// A prompt for one value, which flags can give instead.
struct Prompt<'a> {
    text: String,
    default: String,
    apply: Apply,
    /// The flags that answer the prompt.
    flags: Vec<PromptFlag<'a>>,
}

/// A flag that answers a prompt.
struct PromptFlag<'a> {
    flag: &'static str,
    value: Option<&'a str>,
    apply: Apply,
}

impl<'a> Prompt<'a> {
    /// Creates a prompt that one flag can answer.
    fn new(
        (text, default): (String, String),
        (flag, value): (&'static str, Option<&'a String>),
        apply: Apply,
    ) -> Self {
        let flags = vec![PromptFlag { flag, value: value.map(String::as_str), apply }];
        Self { text, default, apply, flags }
    }
}

pub(crate) fn run(args: &InitArgs, location: &LocationArgs) -> anyhow::Result<ExitCode> {
    let file = args.output.clone().unwrap_or_else(|| location.new_config_file());
    let is_printed = file.as_os_str() == "-";
    if !is_printed && !args.force && file.symlink_metadata().is_ok() {
        return Err(WrongUse(format!(
            "{} exists, and was not changed; --force replaces the file, and --output FILE names \
             another",
            file.display()
        ))
        .into());
    }
    let mut config = Config::default();
    if is_of_service(&file) {
        config.data = SERVICES[0].into();
    }
    let forms = address_forms();
    let is_asked = io::stdin().is_terminal() && io::stderr().is_terminal();
    for prompt in prompts(args, location, &config, &forms)? {
        answer(&prompt, is_asked, &mut config, &forms)?;
    }
    let text = config::file(&config);
    Config::check(&file, text.clone(), &forms)?;
    if is_printed {
        print::text(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    write(&file, &text).with_context(|| {
        format!("{} could not be written; --output FILE names another file", file.display())
    })?;
    print::line(&next_steps(&file))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether all commands read this file if no other file is named.
fn is_of_service(file: &Path) -> bool {
    file == Path::new(SERVICE_CONFIG)
}

/// Returns the prompts for all values. `config` has the defaults.
fn prompts<'a>(
    args: &'a InitArgs,
    location: &'a LocationArgs,
    config: &Config,
    forms: &[AddressForm],
) -> anyhow::Result<Vec<Prompt<'a>>> {
    let networks = client_setups().map(|setup| setup.network);
    let networks = networks.map(|network| format!("{} ({})", network.name(), network.records()));
    let networks = networks.collect::<Vec<_>>().join(", ");
    let served = client_setups().filter(|setup| (setup.is_served)(config));
    let served = served.map(|setup| setup.network.name()).collect::<Vec<_>>().join(", ");
    let data = location.data.as_deref().map(|data| {
        data.to_str()
            .ok_or_else(|| WrongUse("--data: the name of the directory is not UTF-8".into()))
    });
    let (data, store) = (data.transpose()?, location.store.as_deref());
    let listen: Vec<String> = config.listen.iter().map(ListenAddress::to_string).collect();
    let listen = listen.join(", ");
    let examples = AddressForm::examples(forms.get(1..).unwrap_or_default());
    Ok(vec![
        Prompt::new(
            (format!("{NETWORKS}: {networks}. Always served: {served}."), served),
            ("networks", args.networks.as_ref()),
            serve_networks,
        ),
        Prompt {
            text: format!("{ARCHIVE}, such as {examples}."),
            default: config.data.display().to_string(),
            apply: |config, text, forms| {
                let others = forms.get(1..).unwrap_or_default();
                let is_distant = text.contains("://") || AddressForm::of(others, text).is_some();
                let apply: Apply = if is_distant { set_store } else { SET_DATA };
                apply(config, text, forms)
            },
            flags: vec![
                PromptFlag { flag: "data", value: data, apply: SET_DATA },
                PromptFlag { flag: "store", value: store, apply: set_store },
            ],
        },
        Prompt::new(
            (format!("{LISTEN}."), listen),
            ("listen", args.listen.as_ref()),
            |config, text, _| {
                let addresses = text.split(',').map(|address| address.trim().parse());
                config.listen = addresses
                    .collect::<Result<_, _>>()
                    .map_err(|fault: ListenAddressFault| fault.to_string())?;
                Ok(())
            },
        ),
        Prompt::new(
            (format!("{URL}."), "none".into()),
            ("url", args.url.as_ref()),
            |config, text, _| {
                config.info.url = Some(text.into()).filter(|_| !["", "none"].contains(&text));
                Ok(())
            },
        ),
        Prompt::new(
            (format!("{NAME}."), "Hark".into()),
            ("name", args.name.as_ref()),
            |config, text, _| {
                config.info.name = text.into();
                Ok(())
            },
        ),
    ])
}

fn serve_networks(config: &mut Config, text: &str, _: &[AddressForm]) -> Result<(), String> {
    for name in text.split([',', ' ']).filter(|name| !name.is_empty()) {
        let Some(setup) = client_setups().find(|setup| setup.network.name() == name) else {
            let names: Vec<&str> = client_setups().map(|setup| setup.network.name()).collect();
            return Err(format!("there is no network `{name}`; there are {}", names.join(", ")));
        };
        config.serve(setup.network)?;
    }
    Ok(())
}

/// Sets the directory of the archive.
const SET_DATA: Apply = |config, text, _| {
    config.data = text.into();
    Ok(())
};

/// Sets the address of the store. Fails for an address with secret parts, since other users may
/// read the file.
fn set_store(config: &mut Config, text: &str, _: &[AddressForm]) -> Result<(), String> {
    let store = StoreAddress::new(text.into());
    if store.to_string() != text {
        let fault = "the address has secret parts, such as a password, and other users may read the file; \
                     give the password in PGPASSWORD or ~/.pgpass, or write the address into the file \
                     yourself";
        return Err(fault.into());
    }
    config.store = store;
    Ok(())
}

/// Sets the values of the prompt's flags in the configuration or, without flags, the answer on the
/// terminal. After an invalid answer, the prompt is repeated.
fn answer(
    prompt: &Prompt<'_>,
    is_asked: bool,
    config: &mut Config,
    forms: &[AddressForm],
) -> anyhow::Result<()> {
    let mut is_answered = false;
    for PromptFlag { flag, value, apply } in &prompt.flags {
        if let Some(text) = value {
            put(config, text, *apply, forms)
                .map_err(|fault| WrongUse(format!("--{flag}: {fault}")))?;
            is_answered = true;
        }
    }
    if is_answered || !is_asked {
        return Ok(());
    }
    print::note!("{}", prompt.text);
    loop {
        print::prompt(&format!("  [{}] ", prompt.default));
        let mut line = String::new();
        let read = io::stdin()
            .read_line(&mut line)
            .context("the answer could not be read, and nothing was written")?;
        if read == 0 {
            bail!("the input ended before the last value, and nothing was written");
        }
        let text = line.trim();
        if text.is_empty() {
            return Ok(());
        }
        match put(config, text, prompt.apply, forms) {
            Ok(()) => return Ok(()),
            Err(fault) => print::note!("  {fault}"),
        }
    }
}

/// Sets a value in the configuration. Returns the first fault, and changes nothing, if the value is
/// invalid.
fn put(config: &mut Config, text: &str, apply: Apply, forms: &[AddressForm]) -> Result<(), String> {
    let mut new = config.clone();
    apply(&mut new, text, forms)?;
    if let Some(fault) = new.faults(forms).into_iter().next() {
        return Err(fault);
    }
    *config = new;
    Ok(())
}

/// Creates the file's folder, and writes the file completely or not at all.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = unfinished(file);
    let written = (|| {
        let mut out = File::create(&aside)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&aside, file)
    })();
    if written.is_err() {
        // Only the first failure is reported: if the file remains, its name shows that it is
        // unfinished.
        let _ = fs::remove_file(&aside);
    }
    Ok(written?)
}

/// Returns a text that lists the commands to run after `hark init`.
fn next_steps(file: &Path) -> String {
    let shown = file.display();
    let (hark, service) = if is_of_service(file) {
        ("hark".to_owned(), "; as a service: systemctl enable --now hark")
    } else {
        (format!("hark --config {shown}"), "")
    };
    let steps = [
        (format!("{hark} serve"), format!("starts the server{service}")),
        (format!("{hark} doctor"), "in another shell: looks for common troubles".into()),
        (format!("hark config --check {shown}"), "after each change of the file".into()),
    ];
    let width = steps.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let steps: Vec<String> =
        steps.iter().map(|(command, effect)| format!("  {command:width$}    {effect}")).collect();
    format!("{shown} is written. Next:\n{}", steps.join("\n"))
}

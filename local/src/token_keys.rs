//! The keys for claims' tokens: given by `LEDGER_TOKEN_KEYS`, else one of its own, kept in the data folder.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ledger_domain::claim::TokenKeys;
use ledger_domain::ports::Entropy;
use ledger_lambda::env::{Env, parse_token_keys};

use crate::config::StartError;

const FILE: &str = "token-key";

/// The keys. A token given out before a restart is good after it.
pub(crate) fn of(env: &Env, data: &Path, entropy: &dyn Entropy) -> Result<TokenKeys, StartError> {
    if let Some(keys) = env.token_keys()? {
        return Ok(keys);
    }
    let failed = |error: std::io::Error| StartError::tier("LEDGER_DATA", &error);
    std::fs::create_dir_all(data).map_err(failed)?;
    let path = data.join(FILE);
    // Whole or not at all: written beside its place and put there by a rename.
    let key = match std::fs::read_to_string(&path) {
        Ok(key) => key,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key: String =
                entropy.many_eight_bytes(4).iter().map(|part| format!("{:016x}", u64::from_be_bytes(*part))).collect();
            let beside = data.join(format!("{FILE}.new"));
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
            file.and_then(|mut file| file.write_all(key.as_bytes()).and_then(|()| file.sync_all())).map_err(failed)?;
            std::fs::rename(&beside, &path).map_err(failed)?;
            // So that the name, too, survives the power.
            File::open(data).and_then(|folder| folder.sync_all()).map_err(failed)?;
            key
        }
        Err(error) => return Err(failed(error)),
    };
    parse_token_keys(key.trim()).map_err(|expected| StartError::Tier {
        what: "LEDGER_DATA",
        why: format!("{}: expected {expected}", path.display()),
    })
}

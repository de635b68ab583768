//! The scripts: one atomic step each, on one key.

use std::sync::LazyLock;

use ::redis::Cmd;

/// A script, its source and the name that the server knows it by.
pub(super) struct Script {
    text: &'static str,
    script: LazyLock<::redis::Script>,
}

/// How a script is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// By its digest: short, but refused where the server does not have it.
    ByDigest,
    /// By its text, which also leaves it with the server.
    ByText,
}

impl Script {
    /// Begins a call that touches `slot`; the script's own arguments follow.
    pub(super) fn call(&self, call: Call, slot: &[u8], args: usize, arg_bytes: usize) -> Cmd {
        let (name, script) = match call {
            Call::ByDigest => ("EVALSHA", self.script.get_hash()),
            Call::ByText => ("EVAL", self.text),
        };
        let mut cmd = Cmd::with_capacity(4 + args, name.len() + script.len() + 1 + slot.len() + arg_bytes);
        cmd.arg(name).arg(script).arg(1).arg(slot);
        cmd
    }
}

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        pub(super) static $name: Script = Script {
            text: concat!(include_str!("lua/readable.lua"), include_str!($file)),
            script: LazyLock::new(|| ::redis::Script::new($name.text)),
        };
    };
}

script!(
    /// `transition::settle`.
    SETTLE, "lua/settle.lua"
);
script!(
    /// `transition::count`.
    COUNT, "lua/count.lua"
);
script!(
    /// `transition::replace`.
    REPLACE, "lua/replace.lua"
);
script!(
    /// `transition::release`.
    RELEASE, "lua/release.lua"
);
script!(
    /// `transition::heal`.
    HEAL, "lua/heal.lua"
);

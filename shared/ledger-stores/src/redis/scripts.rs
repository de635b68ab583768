//! The scripts: one atomic step each, on one key.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ::redis::Cmd;

/// What scripts share: the line that names it in a script, for which it stands. What comes before that line does without it:
/// making all these functions costs a call a tenth of its time.
const SHARED: [(&str, &str); 3] = [
    ("-- readable.lua\n", include_str!("lua/readable.lua")),
    ("-- counted.lua\n", include_str!("lua/counted.lua")),
    ("-- drifted.lua\n", include_str!("lua/drifted.lua")),
];

/// A script.
pub(super) struct Script(LazyLock<Source>);

/// A script's source, and the name that the server knows it by.
struct Source {
    text: String,
    digest: String,
    /// Which bit of a [`Loaded`] is this script's.
    bit: u32,
}

impl Source {
    fn of(file: &str, bit: u32) -> Self {
        let text = SHARED.iter().fold(file.to_owned(), |text, (line, shared)| text.replacen(line, shared, 1));
        let digest = ::redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest, bit }
    }
}

/// The scripts that were called on a connection.
#[derive(Debug, Default)]
pub(super) struct Loaded(AtomicU32);

/// How a script is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// By its digest: short, but refused where the server does not have it.
    ByDigest,
    /// By its text, which also leaves it with the server.
    ByText,
}

impl Script {
    /// Whether `loaded` holds it.
    pub(super) fn is_in(&self, loaded: &Loaded) -> bool {
        loaded.0.load(Ordering::Relaxed) & self.0.bit != 0
    }

    /// Notes in `loaded` that it was called.
    pub(super) fn note(&self, loaded: &Loaded) {
        loaded.0.fetch_or(self.0.bit, Ordering::Relaxed);
    }

    /// Begins a call that touches `slot`; the script's own arguments follow.
    pub(super) fn call(&self, call: Call, slot: &[u8], args: usize, arg_bytes: usize) -> Cmd {
        let (name, script) = match call {
            Call::ByDigest => ("EVALSHA", self.0.digest.as_str()),
            Call::ByText => ("EVAL", self.0.text.as_str()),
        };
        let mut cmd = Cmd::with_capacity(4 + args, name.len() + script.len() + 1 + slot.len() + arg_bytes);
        cmd.arg(name).arg(script).arg(1).arg(slot);
        cmd
    }
}

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $file:literal, $bit:literal) => {
        $(#[$doc])*
        pub(super) static $name: Script = Script(LazyLock::new(|| Source::of(include_str!($file), $bit)));
    };
}

script!(
    /// `transition::settle`.
    SETTLE, "lua/settle.lua", 1
);
script!(
    /// `transition::count`.
    COUNT, "lua/count.lua", 2
);
script!(
    /// `transition::replace`.
    REPLACE, "lua/replace.lua", 4
);
script!(
    /// `transition::release`.
    RELEASE, "lua/release.lua", 8
);
script!(
    /// `transition::heal`.
    HEAL, "lua/heal.lua", 16
);
script!(
    /// `transition::amend`.
    AMEND, "lua/amend.lua", 32
);
script!(
    /// A value in another's place.
    SWAP, "lua/swap.lua", 64
);
script!(
    /// A marker in another's place.
    MARK, "lua/mark.lua", 128
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_what_it_shares_once_and_a_bit_of_its_own() {
        let scripts = [&SETTLE, &COUNT, &REPLACE, &RELEASE, &HEAL, &AMEND, &SWAP, &MARK];
        let of = |shared: &str| scripts.map(|script| script.0.text.matches(shared).count());
        let [readable, counted, drifted] = SHARED.map(|(_, shared)| of(shared));
        assert_eq!(
            (readable, counted, drifted),
            ([1, 1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 1, 0, 0])
        );
        for script in scripts {
            assert!(SHARED.iter().all(|(line, _)| !script.0.text.contains(line)), "{}", script.0.text);
        }
        let bits: u32 = scripts.iter().map(|script| script.0.bit).sum();
        assert_eq!((bits.count_ones(), bits), (8, 255));
    }
}

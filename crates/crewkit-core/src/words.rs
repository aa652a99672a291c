//! Enums that are words in answers, in the store and in schemas.

/// Defines an enum with the word of each value.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $( $(#[doc = $doc:literal])+ $variant:ident = $text:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name { $( $(#[doc = $doc])+ #[serde(rename = $text)] $variant, )+ }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$( $text, )+].len()] = [$( Self::$variant, )+];

            /// The word of the value.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text, )+ }
            }

            /// The value whose word is `text`.
            pub fn from_word(text: &str) -> Option<Self> {
                match text { $( $text => Some(Self::$variant), )+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use words;

//! Operators by their names: typed, recorded and compared.

use std::fmt;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{OPERATORS, Operator};

static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| OPERATORS.iter().map(|it| it.name()).collect());

impl PartialEq for dyn Operator {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Operator {}

impl Serialize for dyn Operator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for &'static dyn Operator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = &'static dyn Operator;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an operator")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
                named(name).ok_or_else(|| E::unknown_variant(name, &NAMES))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// The operator of this name.
pub fn named(name: &str) -> Option<&'static dyn Operator> {
    OPERATORS.into_iter().find(|it| it.name() == name)
}

/// For an option that names operators.
pub fn parser() -> impl TypedValueParser<Value = &'static dyn Operator> {
    let value = |it: &dyn Operator| PossibleValue::new(it.name()).help(it.title());
    PossibleValuesParser::new(OPERATORS.into_iter().map(value))
        .try_map(|name| named(&name).ok_or("no such operator"))
}

//! The sizes of a problem, whatever the operator.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::operators::{OPERATORS, Operator};

/// The sizes of a problem of one operator, as recorded.
pub trait Sizes: Any + Debug + Send + Sync {
    /// Whose they are.
    fn operator(&self) -> &'static dyn Operator;

    /// Each size with its letter, in an order that is the same for all of an operator.
    fn in_words(&self) -> Vec<String>;

    /// What it is computed from, if that is not the usual; part of a benchmark's name.
    fn variant(&self) -> Option<&'static str> {
        None
    }

    /// Elements of the tensor of which only what samples touch must be read; none where everything is read.
    fn sampled_elements(&self) -> Option<f64> {
        None
    }

    /// Whether others are the same.
    fn is_same(&self, other: &dyn Any) -> bool;

    /// As they stand in a record.
    fn to_json(&self) -> serde_json::Result<Box<RawValue>>;
}

/// The sizes of a problem in a record. Operators are told apart by the names of their sizes: the first that can read them
/// is taken.
#[derive(Clone, Debug)]
pub struct ProblemRecord(Arc<dyn Sizes>);

impl ProblemRecord {
    /// As an operator's own type, if they are of that operator.
    pub fn of<S: Sizes>(&self) -> Option<&S> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// Whose they are.
    pub fn operator(&self) -> &'static dyn Operator {
        self.0.operator()
    }

    /// Each size with its letter.
    pub fn in_words(&self) -> Vec<String> {
        self.0.in_words()
    }

    /// What it is computed from, if that is not the usual.
    pub fn variant(&self) -> Option<&'static str> {
        self.0.variant()
    }

    /// Elements of the tensor of which only what samples touch must be read; none where everything is read.
    pub fn sampled_elements(&self) -> Option<f64> {
        self.0.sampled_elements()
    }
}

impl<S: Sizes> From<S> for ProblemRecord {
    fn from(sizes: S) -> Self {
        ProblemRecord(Arc::new(sizes))
    }
}

impl PartialEq for ProblemRecord {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&*other.0 as &dyn Any)
    }
}

impl Serialize for ProblemRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = self.0.to_json().map_err(S::Error::custom)?;
        json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ProblemRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let sizes = OPERATORS.iter().find_map(|it| it.sizes(&value).ok());
        let sizes = sizes.ok_or_else(|| D::Error::custom("a problem with sizes of no operator"))?;
        Ok(ProblemRecord(sizes))
    }
}

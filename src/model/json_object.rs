//! Reader of side files. It accepts only objects where objects belong, and its errors name the
//! file.

use flexvol_protocol::failure::Failure;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Name of the side file.
pub const SIDE_FILE: &str = ".flexvol.json";

/// Type that a JSON object fills, member by member. Nothing else can fill it: the code that serde
/// derives also accepts an array of the members in order, and has 800 bytes for each of them.
pub(crate) trait Members: Default {
    /// Names of the members.
    const NAMES: &'static [&'static str];

    /// Reads the value of the member of this name.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<(), A::Error>;
}

/// Declares how to read each member, and makes the type `Deserialize`.
macro_rules! members {
    ($type:ty { $($name:literal => $field:ident by $read:path,)+ }) => {
        impl crate::json_object::Members for $type {
            const NAMES: &'static [&'static str] = &[$($name),+];

            fn read<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                name: &str,
                values: &mut A,
            ) -> Result<(), A::Error> {
                match name {
                    $($name => $read(&mut self.$field, values),)+
                    _ => Ok(()),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::json_object::object(deserializer)
            }
        }
    };
}
pub(crate) use members;

/// Reads a member of any type that serde can deserialize.
#[inline(never)]
pub(crate) fn plain<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    place: &mut T,
    values: &mut A,
) -> Result<(), A::Error> {
    *place = values.next_value()?;
    Ok(())
}

pub(crate) fn object<'de, T: Members, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(Object(PhantomData))
}

struct Object<T>(PhantomData<T>);

impl<'de, T: Members> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let (mut object, mut seen) = (T::default(), 0_u32);
        while let Some(index) = map.next_key_seed(Name(T::NAMES))? {
            let name = T::NAMES[index];
            if seen & 1 << index != 0 {
                return Err(A::Error::duplicate_field(name));
            }
            seen |= 1 << index;
            object.read(name, &mut map)?;
        }
        Ok(object)
    }
}

/// Reader of one of these names, which returns its index.
struct Name(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("field identifier")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        let index = self.0.iter().position(|known| *known == name);
        index.ok_or_else(|| E::unknown_field(name, self.0))
    }
}

pub(crate) fn mistake(text: &str) -> Failure {
    Failure::options(format!("{SIDE_FILE}: {text}"))
}

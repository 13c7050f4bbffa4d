//! Wire types of CSI, of kubelet's plugin registration and of container runtimes, generated from
//! `proto/`.

use prost::Message;
// Used by the generated code.
use prost_types as _;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        #[allow(
            missing_docs,
            unreachable_pub,
            unused_qualifications,
            clippy::all,
            clippy::pedantic,
            clippy::allow_attributes_without_reason,
            reason = "generated"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
        }
    };
}

generated!(
    /// Package `csi.v1`.
    csi, "csi.v1"
);
generated!(
    /// Condition of a volume as package `csi.v1` had it before CSI 1.13.
    before, "before/csi.v1"
);
generated!(
    /// Package `pluginregistration`: kubelet asks which driver serves a socket.
    registration, "pluginregistration"
);
generated!(
    /// Package `runtime.v1`: containers of a node, and programs in them.
    runtime, "runtime.v1"
);

/// Codec for protocol buffers. A message that cannot be decoded is the caller's error here; tonic's
/// own codec reports it as the server's.
#[derive(Debug)]
pub struct StrictCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for StrictCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> Codec for StrictCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = StrictDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        StrictDecoder(PhantomData)
    }
}

/// Decoder of [`StrictCodec`].
#[derive(Debug)]
pub struct StrictDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for StrictDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The error names field and type, never a value.
        U::decode(buffer).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

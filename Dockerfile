# The image: one static file, and nothing else. Its entry point puts drivers into the plugin
# directory and keeps them there; `flexvol manifest daemonset` prints the deployment.
#
#   docker build -t flexvol .                                        from source
#   docker build -t flexvol --build-arg SOURCE=prebuilt .            from BINARY, without network
#
# podman and buildah take the same arguments.

ARG RUST_IMAGE=rust:1-alpine
ARG SOURCE=build

# Alpine's own target is musl, and static.
FROM ${RUST_IMAGE} AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin flexvol --target-dir /build && cp /build/release/flexvol /flexvol

FROM scratch AS prebuilt
ARG BINARY=target/x86_64-unknown-linux-musl/release/flexvol
COPY ${BINARY} /flexvol

FROM ${SOURCE} AS binary

FROM scratch
LABEL org.opencontainers.image.title="flexvol" \
      org.opencontainers.image.description="FlexVolume drivers for Kubernetes nodes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binary /flexvol /flexvol
ENTRYPOINT ["/flexvol", "deploy"]

# Two stages: the second holds the binary, the C library it is linked with, the public certificates and the policy
# that denies everything. No shell, no package manager; `checkrein probe ready` is the probe.
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY policies policies
# Cargo wants every named target to be there.
RUN mkdir -p tests/it tests/real benches/store \
    && touch tests/it/main.rs tests/real/main.rs benches/store/main.rs
RUN cargo build --profile dist --locked --bin checkrein
COPY deploy/image/assemble /assemble
RUN sh /assemble target/dist/checkrein policies/default.yaml /image

FROM scratch
COPY --from=build /image /
# The memory of writes; mount a volume over it, or it ends with the container.
COPY --from=build --chown=65532:65532 /image/var/lib/checkrein /var/lib/checkrein
USER 65532:65532
EXPOSE 7411 7412
ENTRYPOINT ["/usr/local/bin/checkrein"]
# Mount a directory with your policy.yaml over /etc/checkrein/policy; what is there permits nothing.
CMD ["run", "--policy=/etc/checkrein/policy/policy.yaml", "--listen=0.0.0.0:7411", "--health=0.0.0.0:7412"]

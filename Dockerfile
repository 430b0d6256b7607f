# The image of the agent and the controller. `tools/image build` makes it without a Docker engine; `docker build .` works too.
# Nothing in it depends on the time or the place of the build: same sources, same Debian packages, same digest.
# Debian 12 by its digest, NAME@sha256:...; `tools/image build` makes it from Debian's signed packages instead.
ARG BASE

FROM ${BASE} AS build
RUN apt-get -q update \
 && apt-get -q install -y --no-install-recommends \
    ca-certificates clang-14 libbpf-dev libc6-dev llvm-14 make python3-pip python3-venv
WORKDIR /src
# A certificate authority of the network that builds, if it has one.
ARG CA_BUNDLE=
COPY tools/image-requirements.txt tools/build-requirements.txt tools/
RUN pip install ${CA_BUNDLE:+--cert ${CA_BUNDLE}} --break-system-packages --quiet --no-compile --no-deps \
    --only-binary :all: --require-hashes --root /needed -r tools/image-requirements.txt \
 && rm -r /needed/usr/local/lib/python3.11/dist-packages/kubernetes/aio \
 && pip install ${CA_BUNDLE:+--cert ${CA_BUNDLE}} --break-system-packages --quiet --no-deps \
    --only-binary :all: --require-hashes -r tools/build-requirements.txt
ARG SOURCE_DATE_EPOCH=0
COPY . .
RUN PYTHONPATH=/needed/usr/local/lib/python3.11/dist-packages python3 -m hatchling build --target wheel \
 && pip install --break-system-packages --quiet --no-compile --no-deps --no-index --root /out dist/*.whl

FROM ${BASE} AS runtime
# Of bcc only its symbolizer, for `trace`: the package as a whole would bring a compiler of 100 MB. It needs libelf and libstdc++.
RUN apt-get -q update && apt-get -q install -y --no-install-recommends libbpf1 libelf1 libstdc++6 python3 \
 && cd /tmp && apt-get -q download libbpfcc \
 && dpkg-deb --fsys-tarfile libbpfcc_*.deb | tar -C / -x --wildcards './usr/lib/*/libbcc_bpf.so.*' ./usr/share/doc/libbpfcc/copyright
# What changes least comes first, so that its layers are kept. Compiled files carry a hash, because one that carries a time
# is not believed once all times are the same.
ARG COMPILE="python3 -m compileall -q -f --invalidation-mode unchecked-hash"
RUN ${COMPILE} /usr/lib/python3 /usr/lib/python3.11
COPY --from=build /needed/ /
RUN ${COMPILE} /usr/local/lib/python3.11/dist-packages
COPY --from=build /out/ /
COPY tools/sbom.py /tmp/
ARG SOURCE_DATE_EPOCH=0
RUN ${COMPILE} /usr/local/lib/python3.11/dist-packages/kcover_ebpf \
 && mkdir -p /usr/share/sbom && python3 /tmp/sbom.py > /usr/share/sbom/kcover-ebpf.spdx.json \
 && find /usr/local/lib/python3.11/dist-packages -path '*.dist-info/direct_url.json' -delete \
 && rm -rf /tmp/* /var/log/* /var/cache/* /var/lib/apt/lists/* /var/lib/dpkg/*-old /etc/machine-id \
    /usr/share/doc/*/changelog* /usr/share/man /usr/local/share/man /usr/share/info /usr/share/locale /root/.cache

FROM scratch
LABEL org.opencontainers.image.title="kcover-ebpf" \
      org.opencontainers.image.description="eBPF fault sensor for AI training: agent and controller" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"
COPY --from=runtime / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The controller. The agent's pod asks for root by itself.
USER 65532:65532
ENTRYPOINT ["kcover-ebpf"]

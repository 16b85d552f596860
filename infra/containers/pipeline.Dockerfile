# Image of a Beam worker: the pipeline and its pinned dependencies, without JAX.
#
#   docker build --file infra/containers/pipeline.Dockerfile --build-arg VERSION=0.2.0 \
#     --tag REGISTRY/vast-rl-pipeline:0.2.0 .
#   docker push REGISTRY/vast-rl-pipeline:0.2.0
#
# `python -m infra launch pipeline --target dataflow` takes this image. The tag must be the
# package's version, because the launcher compares it with its own version.
FROM apache/beam_python3.11_sdk:2.77.0

ARG VERSION
LABEL org.opencontainers.image.version=${VERSION}

WORKDIR /opt/vast-rl
COPY pyproject.toml README.md LICENSE ./
COPY infra/containers/pipeline.txt infra/requirements.txt
COPY pipeline pipeline
RUN pip install --no-cache-dir --require-hashes --requirement infra/requirements.txt \
  && pip install --no-cache-dir --no-index --no-deps --no-build-isolation . \
  && pip check \
  && python -c "import importlib.metadata as m; assert m.version('vast-rl') == '${VERSION}'" \
  && useradd --uid 10001 --create-home worker

# Relabelling and collecting draw nothing, so MuJoCo needs no display. Beam's program boot
# would otherwise make a virtual environment at every start, in a folder of root's; the
# image's own environment has all packages.
ENV MUJOCO_GL=disabled RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# There is no USER, because Dataflow mounts folders that only root may write to. The
# manifests for Kubernetes name the unprivileged user instead.
ENTRYPOINT ["/opt/apache/beam/boot"]

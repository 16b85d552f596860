# Image of a trainer on NVIDIA GPUs: trainer, evaluation, JAX with its libraries, no Beam.
#
#   docker build --file infra/containers/trainer-cuda.Dockerfile \
#     --build-arg VERSION=0.2.0 --tag REGISTRY/vast-rl-trainer-cuda:0.2.0 .
#   docker push REGISTRY/vast-rl-trainer-cuda:0.2.0
#
# The node provides the driver, the wheels everything else of CUDA. Evaluation on CPUs uses
# this image, too.
FROM python:3.11.14-slim-bookworm

ARG VERSION
LABEL org.opencontainers.image.version=${VERSION}

WORKDIR /opt/vast-rl
COPY pyproject.toml README.md LICENSE ./
COPY infra/containers/trainer-cuda.txt infra/requirements.txt
COPY pipeline pipeline
COPY trainer trainer
COPY configs configs
RUN pip install --no-cache-dir --require-hashes --requirement infra/requirements.txt \
  && pip install --no-cache-dir --no-index --no-deps --no-build-isolation . \
  && pip check \
  && python -c "import importlib.metadata as m; assert m.version('vast-rl') == '${VERSION}'" \
  && useradd --uid 10001 --create-home trainer

# Rollouts need no display. Unbuffered output shows logs as they are written. GKE mounts the
# node's driver at this path, where no loader looks by itself.
ENV MUJOCO_GL=disabled PYTHONUNBUFFERED=1 LD_LIBRARY_PATH=/usr/local/nvidia/lib64
USER 10001
ENTRYPOINT ["python", "-m", "trainer"]

# Image of a trainer on TPUs: trainer, evaluation, JAX with its libraries, no Beam.
#
#   docker build --file infra/containers/trainer-tpu.Dockerfile \
#     --build-arg VERSION=0.2.0 --tag REGISTRY/vast-rl-trainer-tpu:0.2.0 .
#   docker push REGISTRY/vast-rl-trainer-tpu:0.2.0
#
# The wheels provide the TPU's library.
FROM python:3.11.14-slim-bookworm

ARG VERSION
LABEL org.opencontainers.image.version=${VERSION}

WORKDIR /opt/vast-rl
COPY pyproject.toml README.md LICENSE ./
COPY infra/containers/trainer-tpu.txt infra/requirements.txt
COPY pipeline pipeline
COPY trainer trainer
COPY configs configs
RUN pip install --no-cache-dir --require-hashes --requirement infra/requirements.txt \
  && pip install --no-cache-dir --no-index --no-deps --no-build-isolation . \
  && pip check \
  && python -c "import importlib.metadata as m; assert m.version('vast-rl') == '${VERSION}'" \
  && useradd --uid 10001 --create-home trainer

# Rollouts need no display. Unbuffered output shows logs as they are written.
ENV MUJOCO_GL=disabled PYTHONUNBUFFERED=1
USER 10001
ENTRYPOINT ["python", "-m", "trainer"]

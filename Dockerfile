# Paceline's server for CPUs. Build: docker build -t paceline .   Run: docker run -p 8000:8000 paceline smollm2
# The applications: docker run --entrypoint paceline-apps paceline --help
# Settings come as PACELINE_* variables; keep keys out of the image: mount a file and set PACELINE_API_KEY_FILE.
FROM python:3.12-slim AS build
WORKDIR /build
RUN python -m venv /opt/paceline
# torch without CUDA, from its own index: a tenth of the size.
COPY constraints.txt ./
RUN /opt/paceline/bin/pip install --no-cache-dir -c constraints.txt --index-url https://download.pytorch.org/whl/cpu torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/paceline/bin/pip install --no-cache-dir -c constraints.txt '.[otel,apps,events]'

FROM python:3.12-slim
# The native decoder is compiled when it is first needed.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 paceline
COPY --from=build /opt/paceline /opt/paceline
USER paceline
# A volume that is mounted there belongs to this user.
RUN mkdir -p /home/paceline/.cache
ENV PATH=/opt/paceline/bin:$PATH PACELINE_HOST=0.0.0.0 PACELINE_LOG_FORMAT=json
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
# Every command of the image must at least start.
RUN for command in paceline paceline-apps; do "$command" --help > /dev/null || exit 1; done
ENTRYPOINT ["paceline", "serve"]

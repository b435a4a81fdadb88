# A small S3 server that arbitrates conditional writes: the one that Onceonly is tested on.
FROM golang:1.26-bookworm AS build
RUN CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

FROM debian:bookworm-slim
RUN useradd --uid 50001 s3 \
 && install --directory --owner s3 /data /data/lake
COPY --from=build /go/bin/versitygw /usr/local/bin/versitygw
USER s3
VOLUME ["/data"]
EXPOSE 7070

# An image with one static binary and no shell. The binary runs as a user
# without rights.

# The compiler runs on the machine that builds, also for an image of another
# platform. Only BuildKit sets BUILDPLATFORM and the TARGET variables. Without
# BuildKit the image is for the machine that builds; if this is not linux/amd64,
# use --build-arg BUILDPLATFORM=linux/arm64 there.
ARG BUILDPLATFORM=${BUILDPLATFORM:-linux/amd64}
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG TARGETVARIANT
ARG VERSION=dev
ARG COMMIT=unknown
ARG DATE=unknown
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH GOARM=${TARGETVARIANT#v} scripts/build /dispatcher

# A tag of distroless points to another image after each update. Pin a digest if
# you promote images from one environment to another.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /dispatcher /dispatcher
USER nonroot
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 CMD ["/dispatcher", "healthcheck"]
ENTRYPOINT ["/dispatcher"]
CMD ["serve"]

# One static binary in an image without a shell, run by a user without rights.

FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /dispatcher ./cmd/dispatcher

# The tags of distroless are moving: pin a digest where images are promoted.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /dispatcher /dispatcher
USER nonroot
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 CMD ["/dispatcher", "healthcheck"]
ENTRYPOINT ["/dispatcher"]
CMD ["serve"]

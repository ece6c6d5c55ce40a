# An image with one static binary and no shell. The binary runs as a user
# without rights.

FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /dispatcher ./cmd/dispatcher

# A tag of distroless points to another image after each update. Pin a digest if
# you promote images from one environment to another.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /dispatcher /dispatcher
USER nonroot
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 CMD ["/dispatcher", "healthcheck"]
ENTRYPOINT ["/dispatcher"]
CMD ["serve"]

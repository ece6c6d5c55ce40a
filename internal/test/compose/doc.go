// Package compose runs docker-compose.yml with a Docker engine, if `make compose-test` asks for it. The engine is a
// private one in a network namespace of its own, so no packet leaves the machine. It cannot pull an image: the folder
// standins builds stand-ins from Debian's packages, under the names and tags of the images. The other tests of the
// package need no engine. They check that each image, variable and command has its stand-in. The package contains only
// tests.
//
// The stand-ins leave parts of the images untested:
//
//   - Postgres 15 replaces postgres. The entry point of the image is not tested.
//   - Redis 7.0.15 replaces redis. The fixed time that scripts see in Redis 7.2 is not tested.
//   - Mosquitto 2.0.11 replaces eclipse-mosquitto. The dynamic-security plugin of 2.0.22 and Alpine's C library are not tested.
//   - Prometheus 2.42 replaces prom/prometheus. The stricter parsers of Prometheus 3 and "promtool check healthy" are not tested.
//   - A script that reads the mounted files replaces grafana/grafana.
package compose

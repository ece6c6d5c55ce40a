// Package compose runs docker-compose.yml with a Docker engine, if `make compose-test` asks for it. The engine is a
// private one in a network namespace of its own, so no packet leaves the machine. It cannot pull an image: the folder
// standins builds stand-ins from Debian's packages, under the names and tags of the images. The other tests of the
// package need no engine. They check that each image, variable and command has its stand-in. The package contains only
// tests.
package compose

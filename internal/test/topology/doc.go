// Package topology tests the deployment without containers. It runs the services of docker-compose.yml with the
// programs of this machine, and checks the files of the deployment against the program. The configuration files,
// commands, variables and health checks are the same; only addresses and folders differ. The package contains only
// tests.
package topology

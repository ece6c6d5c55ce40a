// Package topology runs the services of docker-compose.yml with the programs of this machine, and checks the files of the deployment
// against the program: the same configuration files, commands, variables and health checks. Only addresses and folders differ. The package
// contains only tests.
package topology

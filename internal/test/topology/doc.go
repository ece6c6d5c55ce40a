// Package topology runs what docker-compose.yml says with the programs of this
// machine, and checks the files of the deployment against the program: the
// same configuration files, commands, variables and health checks. Only
// addresses and folders differ. It holds nothing but tests.
package topology

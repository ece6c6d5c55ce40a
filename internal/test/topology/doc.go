// Package topology checks the files of the deployment against the program, and runs the commands of docs/operations.md
// for plain machines. Package compose runs docker-compose.yml. The package contains only tests.
package topology

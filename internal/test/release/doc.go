// Package release tests the packages of a release. With each change, it compares their files with one another. With
// -whole, it builds releases, and installs them in empty Debian roots. The package contains only tests.
package release

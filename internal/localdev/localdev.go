// Package localdev lets commands find the `dispatcher dev` that runs on this machine.
//
// While a dev runs, it keeps one file in each of several folders, and holds a lock on each file. A file without a lock was left by a dev
// that was killed. The content of such a file must not be used: another program may have the port by now, and would receive the token.
package localdev

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const fileName = "dev.json"

// ErrNoServer means that no `dispatcher dev` runs, and that there is no file of a dev that was killed.
var ErrNoServer = errors.New("no dispatcher dev runs here")

// StaleError means that a `dispatcher dev` has ended without removing its file, so that the file is
// outdated.
type StaleError struct {
	File string
	URL  string // the address of the dev that has ended
}

// Error returns the address of the dev that has ended, and the file that it left.
func (e *StaleError) Error() string {
	return fmt.Sprintf("the dispatcher dev at %s no longer runs (it was killed, and left the file %s)", e.URL, e.File)
}

// Server holds what a command needs to connect to a dev (a running `dispatcher dev`).
type Server struct {
	URL        string `json:"url"`
	MQTTURL    string `json:"mqtt_url"` // URL of its broker
	Token      string `json:"token"`    // operator token, role admin
	FleetToken string `json:"fleet_token"`
	DataDir    string `json:"data"` // absolute path of its data folder
}

// StateDir returns the folder for the user's state. It does not depend on the working directory.
func StateDir() (folder string, err error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "dispatcher"), nil
}

// Announcement is the set of locked files by which the commands on this machine find a running dev.
type Announcement struct {
	paths []string
	locks []*os.File // locks[i] is on the file paths[i]
}

// Announce writes a file with the data of server into each of folders, and creates a folder that is missing. The returned Announcement
// lists the files that were written, even if Announce also returns an error.
func Announce(server Server, folders ...string) (*Announcement, error) {
	n := &Announcement{}
	var errs []error
	for _, dir := range folders {
		lock, err := writeLockedFile(server, dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.paths, n.locks = append(n.paths, filepath.Join(dir, fileName)), append(n.locks, lock)
	}
	return n, errors.Join(errs...)
}

// writeLockedFile writes the file of a running dev into folder and returns it locked. The file gets its final name only when it is complete and
// locked.
func writeLockedFile(server Server, folder string) (_ *os.File, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(folder, ".dev-*.json") // with mode 0600
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(f).Encode(server); err != nil {
		return nil, err
	}
	return f, os.Rename(f.Name(), filepath.Join(folder, fileName))
}

// Withdraw removes the files that Announce wrote, except a file that another dev has replaced in the meantime.
func (n *Announcement) Withdraw() error {
	var errs []error
	for i, lock := range n.locks {
		ours, err := lock.Stat()
		if current, statErr := os.Stat(n.paths[i]); err == nil && statErr == nil && os.SameFile(ours, current) {
			err = os.Remove(n.paths[i])
		}
		errs = append(errs, err, lock.Close())
	}
	n.paths, n.locks = nil, nil
	return errors.Join(errs...)
}

// Find searches folders in their order and returns the first running dev. If no dev runs, the error is a *StaleError if one of folders contains
// the file of a dev that was killed, and otherwise ErrNoServer.
func Find(folders ...string) (Server, error) {
	notFound := ErrNoServer
	for _, dir := range folders {
		s, err := readServer(filepath.Join(dir, fileName))
		if err == nil {
			return s, nil
		}
		if _, stale := errors.AsType[*StaleError](err); stale && errors.Is(notFound, ErrNoServer) {
			notFound = err
		} else if !stale && !errors.Is(err, os.ErrNotExist) {
			return Server{}, err
		}
	}
	return Server{}, notFound
}

// readServer reads the file of a dev at path. If the file is not locked, the dev has ended, and the error is a *StaleError.
func readServer(path string) (server Server, err error) {
	f, err := os.Open(path)
	if err != nil {
		return server, err
	}
	defer func() { _ = f.Close() }()
	if err := json.NewDecoder(f).Decode(&server); err != nil {
		return server, fmt.Errorf("%s: %w", path, err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case err == nil:
		return Server{}, &StaleError{File: path, URL: server.URL}
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return Server{}, fmt.Errorf("%s: %w", path, err)
	}
	return server, nil
}

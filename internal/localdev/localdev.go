// Package localdev lets the commands of this machine find its `dispatcher dev`.
//
// While it runs, dev keeps a file in each of some folders, and a lock on it. A
// file that nobody locks was left by a process that was killed. Its content
// must not be used: its port may be another's by now, who would get the token.
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

// ErrNone: no dev runs, and none has left a file.
var ErrNone = errors.New("no dev server runs here")

// StaleError names the file of a dev that no longer runs.
type StaleError struct {
	File string
	URL  string // where it was
}

// Error says which dev is gone, and which file it left.
func (e *StaleError) Error() string {
	return fmt.Sprintf("the dev server that was at %s no longer runs (it was killed, and left %s)", e.URL, e.File)
}

// Server is how a dev is reached.
type Server struct {
	URL        string `json:"url"`
	MQTTURL    string `json:"mqtt_url"` // its broker
	Token      string `json:"token"`    // operator token, role admin
	FleetToken string `json:"fleet_token"`
	Data       string `json:"data"` // absolute path of its data folder
}

// StateDir is the folder of the user's state, whichever folder commands run in.
func StateDir() (string, error) {
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

// Notice is an announced server.
type Notice struct {
	paths []string
	locks []*os.File // of the file at the same place in paths
}

// Announce writes the file into each folder, which is made if it is missing.
// The notice holds those that could be written, also with an error.
func Announce(s Server, dirs ...string) (*Notice, error) {
	n := &Notice{}
	var errs []error
	for _, dir := range dirs {
		lock, err := write(s, dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.paths, n.locks = append(n.paths, filepath.Join(dir, fileName)), append(n.locks, lock)
	}
	return n, errors.Join(errs...)
}

// write puts the file in its place when it is whole and locked.
func write(s Server, dir string) (_ *os.File, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".dev-*.json") // 0600
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
	if err := json.NewEncoder(f).Encode(s); err != nil {
		return nil, err
	}
	return f, os.Rename(f.Name(), filepath.Join(dir, fileName))
}

// Withdraw removes the files, unless another dev has put its own there since.
func (n *Notice) Withdraw() error {
	var errs []error
	for i, lock := range n.locks {
		ours, err := lock.Stat()
		if there, statErr := os.Stat(n.paths[i]); err == nil && statErr == nil && os.SameFile(ours, there) {
			err = os.Remove(n.paths[i])
		}
		errs = append(errs, err, lock.Close())
	}
	n.paths, n.locks = nil, nil
	return errors.Join(errs...)
}

// Find returns the running dev that the first of the folders names. When none
// runs, the error is a *StaleError if one has left its file, else ErrNone.
func Find(dirs ...string) (Server, error) {
	none := ErrNone
	for _, dir := range dirs {
		s, err := read(filepath.Join(dir, fileName))
		if err == nil {
			return s, nil
		}
		if _, stale := errors.AsType[*StaleError](err); stale && errors.Is(none, ErrNone) {
			none = err
		} else if !stale && !errors.Is(err, os.ErrNotExist) {
			return Server{}, err
		}
	}
	return Server{}, none
}

func read(path string) (s Server, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer func() { _ = f.Close() }()
	if err := json.NewDecoder(f).Decode(&s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case err == nil:
		return Server{}, &StaleError{File: path, URL: s.URL}
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return Server{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

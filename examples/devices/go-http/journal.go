package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
)

type grant struct {
	Task  int64 `json:"task"`
	Token int64 `json:"token"`
}

type result struct {
	grant
	Status string `json:"status"`
	Output any    `json:"output,omitempty"`
	Error  string `json:"error"`
}

// journal is the state that survives a restart. Each method that changes the file returns only when the change is on disk.
type journal struct {
	path    string
	Boot    int      // the number of starts; report ids begin with it, so that they are unique
	top     int64    // the highest token that was started since the boot, or of a result in the journal
	Started *grant   // the running task
	Results []result // each is kept until the server has acknowledged it
}

// loadJournal reads the file and counts the start of the program. A task that ran when the program ended has failed: its connection ended
// with the program, so the device has left the external system.
func (j *journal) loadJournal() {
	if text, err := os.ReadFile(j.path); !errors.Is(err, os.ErrNotExist) {
		exitOnError(errors.Join(err, json.Unmarshal(text, j)))
	}
	j.Boot++
	if j.Started != nil {
		j.Results = append(j.Results, result{grant: *j.Started, Status: "failed", Error: "the device restarted"})
		j.Started = nil
	}
	for _, r := range j.Results {
		j.top = max(j.top, r.Token)
	}
	j.save()
}

// recordStart records a task before it starts, so that its token is not started again after a restart.
func (j *journal) recordStart(granted grant) {
	j.top, j.Started = granted.Token, &granted
	j.save()
}

// keepResult adds a result to the journal. It must be called before the result is reported.
func (j *journal) keepResult(added result) {
	j.Results, j.Started = append(j.Results, added), nil
	j.save()
}

// removeResult removes the result of the grant in ended. It does not save the journal.
func (j *journal) removeResult(ended grant) {
	j.Results = slices.DeleteFunc(j.Results, func(r result) bool { return r.grant == ended })
}

func (j *journal) save() {
	text, err := json.Marshal(j)
	exitOnError(err)
	replaceFile(j.path, text)
}

// exitOnError ends the program on an error: a device that cannot write its journal must not work.
func exitOnError(err error) {
	if err != nil {
		panic(err)
	}
}

// replaceFile replaces a file so that a power cut leaves either the old or the new text.
func replaceFile(path string, text []byte) {
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	exitOnError(err)
	_, err = file.Write(text)
	exitOnError(errors.Join(err, file.Sync(), file.Close(), os.Rename(path+".new", path)))
	folder, err := os.Open(filepath.Dir(path))
	exitOnError(err)
	exitOnError(errors.Join(folder.Sync(), folder.Close())) // without it, a power cut may undo the rename
}

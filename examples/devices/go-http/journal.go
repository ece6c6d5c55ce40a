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

// journal is the state that survives a restart. start, keep and save return when their change is on disk.
type journal struct {
	path    string
	Boot    int      // the number of starts; report ids begin with it, so that they are unique
	top     int64    // the highest token that was started since the boot, or of a result in the journal
	Started *grant   // the running task
	Results []result // each is kept until the server has acknowledged it
}

// open reads the file and counts the start. A task that ran when the program ended has failed: its connection ended with
// the program, so the device has left the external system.
func (j *journal) open() {
	if text, err := os.ReadFile(j.path); !errors.Is(err, os.ErrNotExist) {
		check(errors.Join(err, json.Unmarshal(text, j)))
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

// start is called before the task starts, so that its token is not started again after a restart.
func (j *journal) start(g grant) {
	j.top, j.Started = g.Token, &g
	j.save()
}

// keep is called before the result is reported.
func (j *journal) keep(r result) {
	j.Results, j.Started = append(j.Results, r), nil
	j.save()
}

// remove removes a result. It does not save.
func (j *journal) remove(g grant) {
	j.Results = slices.DeleteFunc(j.Results, func(r result) bool { return r.grant == g })
}

func (j *journal) save() {
	text, err := json.Marshal(j)
	check(err)
	replaceFile(j.path, text)
}

// check ends the program on an error: a device that cannot write its journal must not work.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// replaceFile replaces a file so that a power cut leaves either the old or the new text.
func replaceFile(path string, text []byte) {
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	check(err)
	_, err = file.Write(text)
	check(errors.Join(err, file.Sync(), file.Close(), os.Rename(path+".new", path)))
	folder, err := os.Open(filepath.Dir(path))
	check(err)
	check(errors.Join(folder.Sync(), folder.Close())) // without it, a power cut may undo the rename
}

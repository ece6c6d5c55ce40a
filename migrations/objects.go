package migrations

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Object is an index or a trigger of the schema.
type Object struct{ Kind, Name, Table string }

// The kinds of objects. Primary keys and unique keys are indexes.
const (
	Index   = "index"
	Trigger = "trigger"
)

// Objects returns the indexes and triggers that the Postgres migrations create, in the order of the files. If a migration gives an index no
// name, its Object has the name that Postgres gives it.
func Objects() ([]Object, error) {
	names, err := fs.Glob(files, Postgres+"/*.sql")
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading migration %s: %w", name, err)
		}
		up, _, _ := strings.Cut(string(content), "-- +goose Down")
		all = append(all, parseObjects(up)...)
	}
	return all, nil
}

func parseObjects(schemaSQL string) (objects []Object) {
	var (
		table     = regexp.MustCompile(`^CREATE TABLE (\w+) \(`)
		index     = regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX (\w+) ON (\w+)`)
		trigger   = regexp.MustCompile(`^CREATE TRIGGER (\w+) .*\bON (\w+)`)
		uniqueKey = regexp.MustCompile(`^\s+UNIQUE \(([\w, ]+)\)`)
		unique    = regexp.MustCompile(`^\s+(\w+)\s.*\bUNIQUE\b`)
	)
	currentTable := "" // the table whose columns are being read
	for line := range strings.Lines(schemaSQL) {
		line, _, _ = strings.Cut(line, "--")
		if found := table.FindStringSubmatch(line); found != nil {
			currentTable = found[1]
		} else if found := index.FindStringSubmatch(line); found != nil {
			objects = append(objects, Object{Index, found[1], found[2]})
		} else if found := trigger.FindStringSubmatch(line); found != nil {
			objects = append(objects, Object{Trigger, found[1], found[2]})
		}
		if strings.Contains(line, "PRIMARY KEY") {
			objects = append(objects, Object{Index, currentTable + "_pkey", currentTable})
		}
		if found := uniqueKey.FindStringSubmatch(line); found != nil {
			objects = append(objects, Object{Index, currentTable + "_" + strings.ReplaceAll(found[1], ", ", "_") + "_key", currentTable})
		} else if found := unique.FindStringSubmatch(line); found != nil {
			objects = append(objects, Object{Index, currentTable + "_" + found[1] + "_key", currentTable})
		}
	}
	return objects
}

package topology

import (
	"encoding/json"
	"strings"
	"testing"
)

// image is a Dockerfile: its instructions in order.
type image []instruction

type instruction struct{ name, rest string }

func dockerfile(t *testing.T) image {
	t.Helper()
	var i image
	for line := range strings.Lines(string(read(t, "Dockerfile"))) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		i = append(i, instruction{name, rest})
	}
	return i
}

// all are what the instructions of that name say.
func (i image) all(name string) (rest []string) {
	for _, one := range i {
		if one.name == name {
			rest = append(rest, one.rest)
		}
	}
	return rest
}

// exec are the words of the last instruction of that name, as a JSON list.
func (i image) exec(name string) (words []string) {
	found := i.all(name)
	if len(found) == 0 {
		return nil
	}
	last := found[len(found)-1]
	_ = json.Unmarshal([]byte(last[max(strings.Index(last, "["), 0):]), &words)
	return words
}

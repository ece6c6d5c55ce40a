package simulator

import (
	"encoding/json"
	"strconv"
	"time"
)

// trickyValues returns JSON values whose bytes a careless server changes: unusual spellings of numbers and of
// escapes, characters that HTML escaping rewrites, astral characters.
func trickyValues() (jsonValues []string) {
	return []string{
		`1.0`, `1E+2`, `-0`, `0.1000`, `12345678901234567890`, `1e-7`,
		`"\u00e9é"`, `"<b>&amp;</b>"`, `"\u2028"`, "\"\u2028\u2029\"", `"\/"`, `"😀\ud83d\ude00"`,
		`"北京"`, `"\t\\\""`, `[]`, `{}`, `null`, `{"z":1,"a":{"B":2,"b":[true,false]}}`,
	}
}

// randomOutput returns a random output for a task. worked is the work time of the task. The output is compact
// JSON and different each time.
func (d dice) randomOutput(task int64, worked time.Duration) json.RawMessage {
	b := append([]byte(`{"task":`), strconv.FormatInt(task, 10)...)
	b = append(b, `,"worked_ms":`...)
	b = strconv.AppendInt(b, worked.Milliseconds(), 10)
	all := trickyValues()
	b = append(append(b, `,"value":`...), all[d.IntN(len(all))]...)
	b = append(append(b, `,"noise":`...), d.randomJSONString()...)
	return append(b, '}')
}

// randomJSONString returns a JSON string of random Unicode characters from all planes, without NUL, control characters and
// surrogates.
func (d dice) randomJSONString() []byte {
	text := make([]rune, 0, 24)
	for range d.IntN(24) {
		r := rune(' ' + d.IntN(0x10ffff-' '))
		switch {
		case r >= 0xd800 && r < 0xe000, r == 0x7f, r == '"', r == '\\':
			r = 'a' + r%26
		}
		text = append(text, r)
	}
	return append(append([]byte{'"'}, string(text)...), '"')
}

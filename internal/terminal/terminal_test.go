package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestSafeEscapesWhatIsNotPrinted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "",
		"d-1 äöü 杭州":            "d-1 äöü 杭州",
		"a\tb\nc":               `a\tb\nc`,
		"\x1b[31mred\x1b[0m":    `\x1b[31mred\x1b[0m`,
		"abc\u202edef":          `abc\u202edef`,
		"\u009b31m":             `\u009b31m`,
		"bad \xff bytes":        `bad \xff bytes`,
		"no\u00a0break\u200bto": `no\u00a0break\u200bto`,
	} {
		if got := EscapeUnprintable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestUnprintableCellsAreShort checks a table cell whose text would consist mostly of escapes: the cell shows the length of the text
// instead. A text with few escapes is shown.
func TestUnprintableCellsAreShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		strings.Repeat("\U000fae65", 20):    "(20 characters, 20 do not print)",
		"\x00\x01\x02\x03abcdefghijkl":      "(16 characters, 4 do not print)",
		"\x00\x01\x02\x03abcdefghijklm":     `\x00\x01\x02\x03abcdefghijklm`,
		"\xff\xfe\xfd\xfc":                  "(4 characters, 4 do not print)",
		"\u2028":                            `\u2028`,
		"\x1b[31mno route to host\x1b[0m\n": `\x1b[31mno route to host\x1b[0m\n`,
		"北京 äöü 😀😀":                         "北京 äöü 😀😀",
	} {
		var out bytes.Buffer
		table := NewTable(&out, "HEAD", "OTHER")
		table.AddRow(text, "x")
		if err := table.Flush(); err != nil || !strings.Contains(out.String(), "\n"+want+"  ") {
			t.Errorf("%q: %v, %s, want %s", text, err, out.String(), want)
		}
	}
}

// TestNothingSteersTheTerminal checks that no printed text can control the terminal.
func TestNothingSteersTheTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		var out bytes.Buffer
		table := NewTable(&out, "HEAD", "OTHER")
		table.AddRow(text, text)
		must.Succeed(t, table.Flush())
		object, err := json.Marshal(map[string]string{"field": text})
		must.Succeed(t, err)
		must.Succeed(t, WriteFields(&out, object, nil))
		for _, r := range strings.ReplaceAll(out.String(), "\n", "") {
			if !unicode.IsPrint(r) || r == utf8.RuneError && !strings.ContainsRune(text, r) && utf8.ValidString(text) {
				t.Fatalf("%q is written as %q", text, out.String())
			}
		}
		if lines := strings.Count(out.String(), "\n"); lines > 3 {
			t.Fatalf("%q makes %d lines", text, lines)
		}
	})
}

func TestTableAlignsAndCutsItsColumns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	table := NewTable(&out, "ID", "NAME", "LAST")
	table.AddRow("1", "杭州", "x")
	table.AddRow("2", "", "")
	table.AddRow("3", strings.Repeat("n", 70), strings.Repeat("l", 500))
	must.Succeed(t, table.Flush())
	want := "ID  NAME" + strings.Repeat(" ", 58) + "LAST\n" +
		"1   杭州" + strings.Repeat(" ", 58) + "x\n2\n3   " +
		strings.Repeat("n", 57) + "...  " + strings.Repeat("l", 397) + "...\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestValuesReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, json, want string }{
		{"lease_ms", `300000`, "5m"},
		{"lease_ms", `5400000`, "1h30m"},
		{"lease_ms", `1500`, "1.5s"},
		{"capacity", `0`, "0"},
		{"token", `9007199254740991`, "9007199254740991"},
		{"rate_per_minute", `7.2507552870090635`, "7.25"},
		{"rate_per_minute", `1234567.0`, "1234567"},
		{"at", `"2026-03-01T04:05:06.789Z"`, "2026-03-01 04:05:06Z"},
		{"name", `"2026-03-01Tx4:05:06.789Z"`, "2026-03-01Tx4:05:06.789Z"},
		{"paused", `true`, "yes"},
		{"eta", `null`, ""},
		{"tags", `{}`, ""},
		{"tags", `{"b": 1}`, `{"b":1}`},
		{"limits", `[]`, ""},
		{"limits", `[{"name":"a","per":"tags.x","algorithm":"sliding","windows":[{"max":1,"per_ms":60000},{"max":5,"per_ms":3600000}]}]`, "a 1/1m 5/1h per tags.x"},
		{"limits", `[{"name":"d","algorithm":"calendar","period":"day","max":9},{"name":"e","algorithm":"calendar","period":"week","max":1,"timezone":"UTC"}]`, "d 9/day; e 1/week UTC"},
		{"limits", `[{"name":"same","algorithm":"duplicate","per_ms":1500,"max":2}]`, "same 2/1.5s"},
		{"windows", `[]`, ""},
		{"windows", `[{"cron":"0 1 * * *","duration":"4h","timezone":"UTC"},{"cron":"x"}]`, "0 1 * * * 4h UTC; x"},
		{"counts", `{"timed_out":2,"failed":0,"pending":17}`, "17 pending, 2 timed out"},
	} {
		if got := FormatValue(test.name, json.RawMessage(test.json)); got != test.want {
			t.Errorf("%s %s: %q, want %q", test.name, test.json, got, test.want)
		}
	}
}

func TestBarShowsTheShareThatIsDone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		want        string
	}{{0, 4, "[....]"}, {1, 4, "[#...]"}, {3, 4, "[###.]"}, {4, 4, "[####]"}, {0, 0, "[####]"}} {
		if got := Bar(test.done, test.total, 4); got != test.want {
			t.Errorf("%d of %d: %s", test.done, test.total, got)
		}
	}
}

func TestProgressDrawsNothingBesideATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewProgress(&out)
	p.Show("1 of %d", 2)
	p.Clear()
	if out.Len() > 0 {
		t.Errorf("%q", out.String())
	}
}

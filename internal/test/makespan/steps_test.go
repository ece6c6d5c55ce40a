package makespan

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// handoffSteps has the durations of the steps of handoffs, read from the dispatcher's debug log. They are grouped
// by step and by the way in which the device was notified.
type handoffSteps []*handoffStep

type handoffStep struct {
	via, name string
	took      []time.Duration
}

// readSteps returns the steps of all handoffs in a log, and their sums.
func readSteps(log []byte) (all handoffSteps) {
	line := regexp.MustCompile(`msg="handed on" pool=\S+ via=(\S+) (.*)`)
	for _, found := range line.FindAllSubmatch(log, -1) {
		via, sum := string(found[1]), time.Duration(0)
		for field := range strings.FieldsSeq(string(found[2])) {
			name, value, _ := strings.Cut(field, "=")
			took, err := time.ParseDuration(value)
			if err != nil {
				continue
			}
			all = all.add(via, name, took)
			sum += took
		}
		all = all.add(via, "together", sum)
	}
	return all
}

func (s handoffSteps) add(via, name string, took time.Duration) handoffSteps {
	for _, step := range s {
		if step.via == via && step.name == name {
			step.took = append(step.took, took)
			return s
		}
	}
	return append(s, &handoffStep{via: via, name: name, took: []time.Duration{took}})
}

// String returns the steps as a table, with the count, the median, the 90th and 99th percentile, and the maximum.
func (s handoffSteps) String() string {
	var out strings.Builder
	for _, step := range s {
		slices.Sort(step.took)
		at := func(q float64) float64 { return 1000 * step.took[int(q*float64(len(step.took)-1))].Seconds() }
		fmt.Fprintf(&out, "%-6s %-10s %6d  p50 %7.2f  p90 %7.2f  p99 %7.2f  max %7.2f ms\n",
			step.via, step.name, len(step.took), at(0.5), at(0.9), at(0.99), at(1))
	}
	return out.String()
}

func withoutDebugLines(log []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte("level=DEBUG")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

func TestStepsAreReadFromTheLog(t *testing.T) {
	t.Parallel()
	log := []byte(`time=x level=INFO msg=listening
time=x level=DEBUG msg="handed on" pool=sim via=push called=1ms read=500µs
time=x level=DEBUG msg="handed on" pool=sim via=park called=1ms claimed=4ms
time=x level=DEBUG msg="handed on" pool=sim via=push called=3ms read=500µs
`)
	const want = `push   called          2  p50    1.00  p90    1.00  p99    1.00  max    3.00 ms
push   read            2  p50    0.50  p90    0.50  p99    0.50  max    0.50 ms
push   together        2  p50    1.50  p90    1.50  p99    1.50  max    3.50 ms
park   called          1  p50    1.00  p90    1.00  p99    1.00  max    1.00 ms
park   claimed         1  p50    4.00  p90    4.00  p99    4.00  max    4.00 ms
park   together        1  p50    5.00  p90    5.00  p99    5.00  max    5.00 ms
`
	if got := readSteps(log).String(); got != want {
		t.Errorf("got\n%s", got)
	}
	if got := string(withoutDebugLines(log)); got != "time=x level=INFO msg=listening\n" {
		t.Errorf("important: %q", got)
	}
}

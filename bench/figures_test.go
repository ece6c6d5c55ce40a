package bench

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// figures are the measurements of one round of a row (a line of the table).
type figures struct {
	count        int // number of things that the row counts, such as cycles
	refused      int // number of reports without the grant that a cycle needs, or without an answer in time
	elapsed      time.Duration
	deadline     time.Time          // time after which no step begins
	countByTenth [10]int            // count, by the tenth of the time span
	reportTimes  []time.Duration    // duration of each report
	cpu          map[string]float64 // processor seconds, by process
}

func (f figures) perSecond() float64 { return float64(f.count) / f.elapsed.Seconds() }

func (f figures) cpuMicros(process string) float64 {
	return f.cpu[process] / float64(max(f.count, 1)) * 1e6
}

// quantileMillis returns the quantile fraction (0 to 1) of the durations of the reports, in milliseconds.
func (f figures) quantileMillis(fraction float64) float64 {
	slices.Sort(f.reportTimes)
	return f.reportTimes[int(fraction*float64(len(f.reportTimes)-1))].Seconds() * 1e3
}

func (f *figures) add(more figures) {
	f.count += more.count
	f.refused += more.refused
	f.reportTimes = append(f.reportTimes, more.reportTimes...)
	for i, n := range more.countByTenth {
		f.countByTenth[i] += n
	}
}

// trendText returns a text that compares the rate in the last tenth of the time with the rate in the first tenth.
// It is empty if the row ended before the last tenth.
func (f figures) trendText() string {
	if f.countByTenth[0] == 0 || f.countByTenth[9] == 0 {
		return ""
	}
	return fmt.Sprintf(", last tenth %.2f of the first", float64(f.countByTenth[9])/float64(f.countByTenth[0]))
}

// processNames returns the names of the processes in the order of their columns. The table has one more column, the
// sum.
func processNames() []string { return []string{"postgres", "redis", "broker", "server", "load"} }

// markdownTable returns the table of the rows in Markdown. Its figures are medians over the rounds.
func markdownTable(rows []row, measured map[string][]figures) string {
	head := []string{"row", "a second", "least to most", "p50 ms", "p99 ms", "refused"}
	for _, name := range processNames() {
		head = append(head, name+" us")
	}
	head = append(head, "CPU us")
	out := tableLine(head) + tableLine(strings.Fields("--- "+strings.Repeat("---: ", len(head)-1)))
	for _, r := range rows {
		out += tableLine(rowCells(r, measured[r.title]))
	}
	return out
}

func rowCells(r row, all []figures) []string {
	least, most := all[0].perSecond(), all[0].perSecond()
	for _, f := range all {
		least, most = min(least, f.perSecond()), max(most, f.perSecond())
	}
	out := []string{
		r.title, formatRate(median(all, figures.perSecond)) + " " + r.unit, formatRate(least) + " to " + formatRate(most),
		"-", "-", "-",
	}
	if len(all[0].reportTimes) > 0 {
		for i, q := range []float64{.5, .99} {
			out[3+i] = fmt.Sprintf("%.1f", median(all, func(f figures) float64 { return f.quantileMillis(q) }))
		}
		out[5] = fmt.Sprintf("%.0f", median(all, func(f figures) float64 { return float64(f.refused) }))
	}
	sum := 0.0
	for _, name := range processNames() {
		micros := median(all, func(f figures) float64 { return f.cpuMicros(name) })
		sum += micros
		out = append(out, formatMicros(micros))
	}
	return append(out, formatMicros(sum))
}

func median(measured []figures, value func(figures) float64) float64 {
	values := make([]float64, len(measured))
	for i, f := range measured {
		values[i] = value(f)
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func tableLine(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func formatMicros(micros float64) string {
	switch {
	case micros == 0:
		return "-"
	case micros < 20:
		return fmt.Sprintf("%.1f", micros)
	}
	return fmt.Sprintf("%.0f", micros)
}

// formatRate formats a rate with a comma between groups of three digits.
func formatRate(rate float64) string {
	text := fmt.Sprintf("%.0f", rate)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// describeMachine returns a text about the machine and the versions of the programs with which the table was
// measured.
func describeMachine(t *testing.T) string {
	t.Helper()
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for entry := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(entry, ":"); strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	commandOutput := func(command string, args ...string) string {
		out, _ := exec.Command(command, args...).Output()
		return strings.TrimSpace(string(out))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%d x %s, load %s; %s; %s; %s; dispatcher %s; commit %s\n", runtime.NumCPU(), model, strings.TrimSpace(string(load)), runtime.Version(),
		commandOutput("postgres", "--version"), commandOutput("redis-server", "--version"), cmp.Or(commandOutput(programPath(t), "version"), "?"), commandOutput("git", "describe", "--always", "--dirty"))
}

func TestFiguresAreMediansOfTheRounds(t *testing.T) {
	t.Parallel()
	var all []figures
	for _, count := range []int{100, 5000, 300} {
		times := []time.Duration{time.Millisecond, 2 * time.Millisecond, time.Duration(count) * time.Millisecond}
		all = append(all, figures{count: count, elapsed: time.Second, reportTimes: times, cpu: map[string]float64{"redis": float64(count) * 30e-6}})
	}
	want := "| x | 300 cycles | 100 to 5,000 | 2.0 | 2.0 | 0 | - | 30 | - | - | - | 30 |\n"
	if got := tableLine(rowCells(row{title: "x", unit: "cycles"}, all)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

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

// figures are what one round of a row has measured.
type figures struct {
	count   int // of what the row is about
	refused int // asked and not granted, or not answered in time
	elapsed time.Duration
	ends    time.Time          // after which nothing is begun
	tenths  [10]int            // of count, by the tenth of the span
	times   []time.Duration    // of each report
	cpu     map[string]float64 // seconds, by process
}

func (f figures) perSecond() float64 { return float64(f.count) / f.elapsed.Seconds() }

func (f figures) micros(process string) float64 {
	return f.cpu[process] / float64(max(f.count, 1)) * 1e6
}

// quantile is in milliseconds.
func (f figures) quantile(q float64) float64 {
	slices.Sort(f.times)
	return f.times[int(q*float64(len(f.times)-1))].Seconds() * 1e3
}

func (f *figures) add(more figures) {
	f.count += more.count
	f.refused += more.refused
	f.times = append(f.times, more.times...)
	for i, n := range more.tenths {
		f.tenths[i] += n
	}
}

// trend says how the last tenth of the time compares with the first; nothing when the row
// ended before.
func (f figures) trend() string {
	if f.tenths[0] == 0 || f.tenths[9] == 0 {
		return ""
	}
	return fmt.Sprintf(", last tenth %.2f of the first", float64(f.tenths[9])/float64(f.tenths[0]))
}

// processes in the order of their columns; the sum is the last one.
func processNames() []string { return []string{"postgres", "redis", "broker", "server", "load"} }

// page is the table in Markdown: medians over the rounds.
func page(rows []row, measured map[string][]figures) string {
	head := []string{"row", "a second", "least to most", "p50 ms", "p99 ms", "refused"}
	for _, name := range processNames() {
		head = append(head, name+" us")
	}
	head = append(head, "CPU us")
	out := line(head) + line(strings.Fields("--- "+strings.Repeat("---: ", len(head)-1)))
	for _, r := range rows {
		out += line(cells(r, measured[r.title]))
	}
	return out
}

func cells(r row, all []figures) []string {
	least, most := all[0].perSecond(), all[0].perSecond()
	for _, f := range all {
		least, most = min(least, f.perSecond()), max(most, f.perSecond())
	}
	out := []string{
		r.title, thousands(median(all, figures.perSecond)) + " " + r.unit, thousands(least) + " to " + thousands(most),
		"-", "-", "-",
	}
	if len(all[0].times) > 0 {
		for i, q := range []float64{.5, .99} {
			out[3+i] = fmt.Sprintf("%.1f", median(all, func(f figures) float64 { return f.quantile(q) }))
		}
		out[5] = fmt.Sprintf("%.0f", median(all, func(f figures) float64 { return float64(f.refused) }))
	}
	sum := 0.0
	for _, name := range processNames() {
		micros := median(all, func(f figures) float64 { return f.micros(name) })
		sum += micros
		out = append(out, microsText(micros))
	}
	return append(out, microsText(sum))
}

func median(all []figures, of func(figures) float64) float64 {
	values := make([]float64, len(all))
	for i, f := range all {
		values[i] = of(f)
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func microsText(micros float64) string {
	switch {
	case micros == 0:
		return "-"
	case micros < 20:
		return fmt.Sprintf("%.1f", micros)
	}
	return fmt.Sprintf("%.0f", micros)
}

// thousands groups the digits of a rate.
func thousands(rate float64) string {
	text := fmt.Sprintf("%.0f", rate)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// machine says what was measured on what.
func machine(t *testing.T) string {
	t.Helper()
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for entry := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(entry, ":"); strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	said := func(command string, args ...string) string {
		out, _ := exec.Command(command, args...).Output()
		return strings.TrimSpace(string(out))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%d x %s, load %s; %s; %s; %s; dispatcher %s; commit %s\n", runtime.NumCPU(), model, strings.TrimSpace(string(load)), runtime.Version(),
		said("postgres", "--version"), said("redis-server", "--version"), cmp.Or(said(program(t), "version"), "?"), said("git", "describe", "--always", "--dirty"))
}

func TestFiguresAreMediansOfTheRounds(t *testing.T) {
	t.Parallel()
	var all []figures
	for _, count := range []int{100, 5000, 300} {
		times := []time.Duration{time.Millisecond, 2 * time.Millisecond, time.Duration(count) * time.Millisecond}
		all = append(all, figures{count: count, elapsed: time.Second, times: times, cpu: map[string]float64{"redis": float64(count) * 30e-6}})
	}
	want := "| x | 300 cycles | 100 to 5,000 | 2.0 | 2.0 | 0 | - | 30 | - | - | - | 30 |\n"
	if got := line(cells(row{title: "x", unit: "cycles"}, all)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

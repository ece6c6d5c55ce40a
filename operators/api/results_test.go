package api_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
)

// endTask lets a device take its next task and end it with this status. extraFields is further JSON of the result.
func (b *testAPI) endTask(device, status, extraFields string) {
	b.Helper()
	b.SendReport(device, b.ReportUntilGranted(device).Result(status, extraFields)).Expect(200)
}

// foldCounts adds the recorded changes to the counts of the batches, as a pass does.
func (b *testAPI) foldCounts() {
	b.Helper()
	_, err := b.Dispatcher.Upkeep.FoldCounts(b.Context())
	b.Must(err)
}

func (b *testAPI) readResults(path string) (r operators.Results) {
	b.Helper()
	b.Get("/v1/batches/1/results" + path).Expect(200).Decode(&r)
	return r
}

// plainPercentile computes a percentile of the numbers in another way than the program does.
func plainPercentile(numbers []float64, share float64) float64 {
	slices.Sort(numbers)
	whole, part := math.Modf(share * float64(len(numbers)-1))
	value := numbers[int(whole)]
	if part > 0 {
		value += part * (numbers[int(whole)+1] - value)
	}
	return value
}

// endRandomTasks lets 120 devices end one task each, three of them as failed. Each output has a random number and a
// word. endRandomTasks returns these values.
func (b *testAPI) endRandomTasks() (numbers []float64, words map[string]int64) {
	b.Helper()
	b.PutPool("p", `{"capacity":200}`)
	names := make([]string, 120)
	for i := range names {
		names[i] = fmt.Sprintf("d-%d", i)
	}
	b.Call("POST", "/v1/devices", adminToken, `{"id":"d-1","tags":{"site":"a"}}`).Expect(201)
	b.Call("POST", "/v1/devices", adminToken, `{"id":"d-2","tags":{"site":"b"}}`).Expect(201)
	list, _ := json.Marshal(slices.Concat(names, []string{"waits"}))
	b.CreateBatch(`{"pool":"p","kind":"k","max_attempts":1,"devices":` + string(list) + `}`)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test draws the same each time
	words = map[string]int64{}
	for i, name := range names {
		n, word := r.NormFloat64()*50+float64(i%3), fmt.Sprintf("w%d", i%7)
		if i%40 == 1 {
			b.endTask(name, "failed", fmt.Sprintf(`,"error":"E%d"`, i%2))
			continue
		}
		numbers = append(numbers, n)
		words[word]++
		b.endTask(name, "succeeded", fmt.Sprintf(`,"output":{"speed":{"down":%g},"word":%q,"list":[1],"odd":%s}`, n, word, []string{"null", "true", `"true"`, "7"}[i%4]))
	}
	b.foldCounts()
	return numbers, words
}

// expectNumbers compares the aggregate that the API returned with a plain computation over the same numbers.
func (b *testAPI) expectNumbers(got *operators.Aggregate, numbers []float64) {
	b.Helper()
	number := got.Number
	for share, value := range map[float64]float64{0: number.Min, 0.05: number.P5, 0.5: number.P50, 0.95: number.P95, 0.99: number.P99, 1: number.Max} {
		if want := plainPercentile(numbers, share); math.Abs(value-want) > 1e-9 {
			b.Errorf("percentile %v is %v, want %v", share, value, want)
		}
	}
	total, mean := int64(0), 0.0
	for _, n := range numbers {
		mean += n
	}
	for i, bin := range number.Histogram {
		total += bin.Tasks
		if i > 0 && bin.From != number.Histogram[i-1].To {
			b.Errorf("a gap before %+v", bin)
		}
		in := int64(0)
		for _, n := range numbers {
			if n >= bin.From && n < bin.To {
				in++
			}
		}
		if in != bin.Tasks {
			b.Errorf("%+v, want %d", bin, in)
		}
	}
	if mean /= float64(len(numbers)); number.Count != 117 || total != 117 || len(number.Histogram) > 20 || len(number.Histogram) < 5 || math.Abs(number.Mean-mean) > 1e-9 || got.Tasks != 117 {
		b.Errorf("%+v, want the mean %v", got, mean)
	}
}

// expectSummary checks the first result, and the parts of the summary that do not depend on random numbers.
func (b *testAPI) expectSummary(got operators.Results) {
	b.Helper()
	sum := got.Summary
	var first struct {
		Word  string
		Speed *float64 `json:"speed.down"`
		None  *int
	}
	if err := json.Unmarshal(got.Results[0].Output, &first); err != nil || first.Word != "w0" || first.Speed == nil || first.None != nil || got.Results[0].Duration == nil {
		b.Errorf("%s, %v", got.Results[0].Output, err)
	}
	wantTags := []operators.TagCount{{Ended: 118, Failed: 2}, {Value: new("a"), Ended: 1, Failed: 1}, {Value: new("b"), Ended: 1}}
	if diff := cmp.Diff(wantTags, sum.ByTag); diff != "" || sum.ByTagRest != nil {
		b.Error(diff)
	}
	if diff := cmp.Diff([]operators.ErrorCount{{Error: "E1", Tasks: 3}}, sum.Errors); diff != "" {
		b.Error(diff)
	}
	wantFields := []operators.OutputField{{Name: "speed.down", Type: "number", Tasks: 117}, {Name: "word", Type: "text", Tasks: 117}, {Name: "list", Type: "list", Tasks: 117}, {Name: "odd", Type: "mixed", Tasks: 117}}
	if diff := cmp.Diff(wantFields, sum.Fields); diff != "" {
		b.Error(diff)
	}
	last := sum.Progress[len(sum.Progress)-1]
	if begin := sum.Progress[0]; begin.Ended != 0 || last.Ended != 120 || last.Failed != 3 || len(sum.Progress) > 102 {
		b.Errorf("%+v", sum.Progress)
	}
}

// Tasks end with random outputs. The aggregates that the API returns equal a simple computation over these outputs.
func TestResultsAreSummedUp(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		numbers, words := b.endRandomTasks()
		got := b.readResults("?aggregate=speed.down&by_tag=site&fields=word,speed.down,none&page_size=50")
		sum := got.Summary
		if len(got.Results) != 50 || got.NextPageToken == "" || sum.Sampled != 120 || sum.Matching != 120 || sum.ErrorsTotal != 3 || sum.ErrorsSampled != 3 {
			t.Fatalf("%+v", got)
		}
		b.expectNumbers(sum.Aggregate, numbers)
		b.expectSummary(got)
		for _, v := range b.readResults("?aggregate=word").Summary.Aggregate.Values {
			if words[v.Value] != v.Tasks {
				t.Errorf("%+v, want %d", v, words[v.Value])
			}
		}
		odd := b.readResults("?aggregate=odd").Summary.Aggregate
		if odd.Number.Count+odd.Values[0].Tasks != odd.Tasks || len(odd.Values) != 1 || odd.Values[0].Value != "true" || odd.Number.Min != 7 || odd.Number.Histogram[0].Tasks != odd.Number.Count {
			t.Errorf("%+v", odd)
		}
		if lists := b.readResults("?aggregate=list").Summary.Aggregate; lists.Other != 117 || lists.Number != nil {
			t.Errorf("%+v", lists)
		}
		if part := b.readResults("?aggregate=speed.down&sample=20&page_size=1").Summary; part.Sampled != 20 || part.Matching != 120 || part.Aggregate.Tasks > 20 {
			t.Errorf("%+v", part)
		}
		if failed := b.readResults("?state=failed"); len(failed.Results) != 3 || failed.Summary.Matching != 3 || failed.Results[0].Error != "E1" {
			t.Errorf("%+v", failed)
		}
		middle := got.Results[9].Ended.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		before, since := b.readResults("?by_tag=site&until="+middle), b.readResults("?by_tag=site&since="+middle)
		if n := int64(len(before.Results)); n == 0 || n > 9 || n+int64(len(b.readPages("/v1/batches/1/results?since="+middle, "results", "task"))) != 120 ||
			before.Summary.Sampled != n || since.Summary.Sampled != 120-n || since.Summary.Scanned != 120 || since.Summary.Matching != 120 {
			t.Errorf("before %s %d: %+v, then %+v", middle, n, before.Summary, since.Summary)
		}
		if failed := before.Summary.Errors[0].Tasks + since.Summary.Errors[0].Tasks; failed != 3 || before.Summary.Errors[0].Tasks != 1 {
			t.Errorf("failed before %s %+v, then %+v", middle, before.Summary.Errors, since.Summary.Errors)
		}
		if all := b.readPages("/v1/batches/1/results", "results", "task"); len(all) != 120 {
			t.Errorf("%d results in all pages", len(all))
		}
		if next := b.readResults("?page_token=" + got.NextPageToken); next.Summary != nil || next.Results[0].Task != got.Results[49].Task+1 {
			t.Errorf("%+v", next)
		}
	})
}

// A query for results is beyond a limit. It is refused, with the name of the field and its limit.
func TestResultsAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":2}`)
	b.CreateBatch(newBatchBody)
	b.Get("/v1/batches/9/results").ExpectProblem(404, "not_found")
	b.getWithAccept("/v1/batches/9/results", csvType).ExpectProblem(404, "not_found")
	b.Get("/v1/batches/1/results?field=a").ExpectProblem(400, "unknown_field")
	for query, parts := range map[string][]string{
		"state=pending":  {"state"},
		"sample=50001":   {"sample", "50000"},
		"sample=0":       {"sample", "1"},
		"page_size=1001": {"page_size"},
		"page_token=!":   {"page_token"},
		"fields=" + strings.Repeat("a,", 50) + "a":              {"query.fields", "51", "50"},
		"fields=a,," + strings.Repeat("b", 3):                   {"query.fields", "1-200 characters"},
		"fields=" + strings.Repeat("a", 201):                    {"query.fields", "200"},
		"aggregate=" + strings.Repeat("a", 201):                 {"aggregate", "200"},
		"by_tag=" + strings.Repeat("a", 65):                     {"by_tag", "64"},
		"since=yesterday":                                       {"since"},
		"since=2026-03-01T04:05:06Z&until=2026-03-01T04:05:06Z": {"until", "later than since"},
		"aggregate=a&aggregate=b":                               {"query.aggregate", "2 times"},
	} {
		b.Get("/v1/batches/1/results?"+query).ExpectProblem(422, "invalid_field", parts...)
	}
	b.getWithAccept("/v1/batches/1/results?aggregate=a", csvType).ExpectProblem(422, "invalid_field", "aggregate", "JSON")
	b.getWithAccept("/v1/batches/1/results?by_tag=a", ndjsonType).ExpectProblem(422, "invalid_field")
	b.Call("GET", "/v1/batches/1/results", "", nil).ExpectProblem(401, "unauthenticated")
	if empty := b.readResults("?aggregate=a&by_tag=b"); len(empty.Results) != 0 || empty.Summary.Matching != 0 || empty.Summary.Aggregate.Tasks != 0 || len(empty.Summary.Progress) != 2 {
		t.Errorf("%+v", empty)
	}
}

// The results as a CSV table have one column for each field. Members of an output that have no column are kept,
// too.
func TestResultsAreAFlatTable(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","max_attempts":1,"devices":["d-1","d-2","d-3","d-4","d-5"]}`)
		b.endTask("d-1", "succeeded", `,"output":{"speed":{"down":94.10,"up":-3},"note":"=1+1","tags":["a","b"]}`)
		b.endTask("d-2", "failed", `,"error":"@no, \"route\"\nhere","output":{"note":"plain","late":true}`)
		b.endTask("d-3", "succeeded", `,"output":"-text"`)
		b.endTask("d-4", "succeeded", "")
		rows := b.getWithAccept("/v1/batches/1/results", csvType).Expect(200).CSVRows()
		head := []string{"task", "device", "state", "ended_at", "duration_ms", "error", "output_dropped", "output.speed.down", "output.speed.up", "output.note", "output.tags", "output.late", "output"}
		if diff := cmp.Diff(head, rows[0]); diff != "" || len(rows) != 5 {
			t.Fatalf("%d rows: %s", len(rows), diff)
		}
		for i, want := range [][]string{
			{"1", "d-1", "succeeded", "", "false", "94.10", "-3", "'=1+1", `["a","b"]`, "", ""},
			{"2", "d-2", "failed", "'@no, \"route\"\nhere", "false", "", "", "plain", "", "true", ""},
			{"3", "d-3", "succeeded", "", "false", "", "", "", "", "", "'-text"},
			{"4", "d-4", "succeeded", "", "false", "", "", "", "", "", ""},
		} {
			row := rows[i+1]
			if row[3] == "" || row[4] == "" {
				t.Errorf("no times: %q", row)
			}
			if diff := cmp.Diff(want, slices.Concat(row[:3], row[5:])); diff != "" {
				t.Error(diff)
			}
		}
		rows = b.getWithAccept("/v1/batches/1/results?fields=note,speed,.&state=succeeded", csvType).Expect(200).CSVRows()
		got := [][]string{rows[0][7:], rows[1][7:], rows[2][7:]}
		if diff := cmp.Diff([][]string{{"output.note", "output.speed", "output"}, {"'=1+1", `{"down":94.10,"up":-3}`, ""}, {"", "", "'-text"}}, got); diff != "" {
			t.Error(diff)
		}
		lines := strings.Split(strings.TrimSpace(string(b.getWithAccept("/v1/batches/1/results", ndjsonType).Expect(200).Body)), "\n")
		if len(lines) != 4 || !strings.Contains(lines[0], `"output":{"speed":{"down":94.10,"up":-3},`) {
			t.Errorf("%q", lines)
		}
	})
}

// A result has a field that the sample of results did not show, so it has no column of its own. It is in the last
// column.
func TestAFieldThatWasNotFoundIsNotLost(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
	var output []string
	for i := range 203 {
		output = append(output, fmt.Sprintf(`"f%d":%d`, i, i))
	}
	b.endTask("d-1", "succeeded", `,"output":{`+strings.Join(output, ",")+`}`)
	rows := b.getWithAccept("/v1/batches/1/results", csvType).Expect(200).CSVRows()
	if n := len(rows[0]); n != 7+200+1 || rows[1][7+199] != "199" || rows[1][n-1] != `{"f200":200,"f201":201,"f202":202}` {
		t.Errorf("%d columns: %q", n, rows[1])
	}
}

// Sets of very different numbers are put into bins. Each number is counted in the bin that contains it, and all
// results can be encoded as JSON.
func TestEveryNumberIsInItsBin(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test draws the same each time
	sets := [][]float64{
		{0.57, 0.5, 0.58, 0.29, 0.7}, {1e308, -1e308, 5}, {5e-324, 0}, {7}, {1e15, 1e15 + 1}, {-3, -2, -1}, {0, 0, 0, 1e6}, {math.Copysign(0, -1), 1}, {1e300, 2e300},
	}
	for range 300 {
		set := make([]float64, 1+r.IntN(50))
		scale := math.Pow10(r.IntN(12) - 6)
		for i := range set {
			set[i] = math.Round(r.NormFloat64()*100) * scale
		}
		sets = append(sets, set)
	}
	for _, set := range sets {
		n := api.NumbersOf(slices.Clone(set))
		if _, err := json.Marshal(n); err != nil || len(n.Histogram) == 0 || len(n.Histogram) > 20 {
			t.Errorf("%v: %+v, %v", set, n, err)
		}
		total := int64(0)
		for i, bin := range n.Histogram {
			in, last := int64(0), len(n.Histogram) == 1
			for _, x := range set {
				if x >= bin.From && (x < bin.To || last && x == bin.To) {
					in++
				}
			}
			if total += bin.Tasks; in != bin.Tasks || i > 0 && bin.From != n.Histogram[i-1].To {
				t.Errorf("%v: %+v has %d", set, bin, in)
			}
		}
		if total != int64(len(set)) || n.Min > n.P5 || n.P5 > n.P50 || n.P50 > n.P95 || n.P95 > n.P99 || n.P99 > n.Max || n.Mean < n.Min-math.Abs(n.Min)*1e-12 || n.Mean > n.Max+math.Abs(n.Max)*1e-12 {
			t.Errorf("%v: %+v", set, n)
		}
	}
}

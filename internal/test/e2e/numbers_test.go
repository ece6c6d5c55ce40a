package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// pageValues are the values that a page must show according to the operators' API, by their place on the page. A
// value of the type nearNumber is not exact, because it changes with time.
type pageValues map[string]any

// nearNumber is a number that a page may show a little later than the API, so it has a tolerance.
type nearNumber struct{ value, tolerance float64 }

// differences returns the places of a page at which it shows another value than expected.
func (s pageValues) differences(shown map[string]string) []string {
	var list []string
	for place, want := range s {
		got, there := shown[place]
		ok := there && got == fmt.Sprint(want)
		if n, isNear := want.(nearNumber); isNear {
			ok = n.matches(got)
		}
		if !ok {
			list = append(list, fmt.Sprintf("%s is %q, want %v", place, got, want))
		}
	}
	slices.Sort(list)
	return list
}

// groupDigits formats a value as pages do: a number with five or six digits is grouped.
func groupDigits(v any) string {
	text := fmt.Sprint(v)
	if _, err := strconv.Atoi(text); err != nil || len(text) < 5 || len(text) > 6 {
		return text
	}
	return text[:len(text)-3] + " " + text[len(text)-3:]
}

// exactValues returns those values that do not change by themselves over time.
func (s pageValues) exactValues() pageValues {
	left := pageValues{}
	for place, want := range s {
		if _, isNear := want.(nearNumber); !isNear {
			left[place] = want
		}
	}
	return left
}

func (n nearNumber) matches(got string) bool {
	value, err := strconv.ParseFloat(got, 64)
	if at, timeErr := time.Parse(time.RFC3339, got); timeErr == nil {
		value, err = float64(at.UnixMilli())/1000, nil
	}
	return err == nil && value >= n.value-n.tolerance && value <= n.value+n.tolerance
}

// These types are answers of the API, with the fields that are compared.
type (
	poolResponse struct {
		Name     string
		Capacity int
		LeaseMS  int64 `json:"lease_ms"`
		Held     int
		Waiting  int
		Oldest   *time.Time `json:"oldest_pending_at"`
	}
	slotsResponse struct {
		Capacity, Held, Reserved, Waiting int
		Oldest                            *time.Time `json:"oldest_pending_at"`
		Slots                             []struct {
			Slot        int
			State       string
			Device      string
			Task, Token int64
			Since       *time.Time
			LeaseUntil  *time.Time `json:"lease_until"`
		}
	}
	batchDetails struct {
		ID        int64
		Pool      string
		Condition string
		Weight    int
		Priority  int
		Total     int64
		Counts    map[string]int64
		Rate      *float64 `json:"rate_per_minute"`
		ETA       *time.Time
	}
	taskResponse struct {
		ID, Batch    int64
		Device, Pool string
		State        string
		Counted      int        `json:"attempts_counted"`
		Finished     *time.Time `json:"finished_at"`
		Error        string
		Attempts     []struct {
			Attempt, Slot int
			EndedBy       string     `json:"ended_by"`
			Granted       *time.Time `json:"granted_at"`
			Ended         *time.Time `json:"ended_at"`
			Token         int64
			Error         string
		}
		Grant *struct {
			Token      int64
			Slot       int
			Attempt    int
			Granted    *time.Time `json:"granted_at"`
			LeaseUntil *time.Time `json:"lease_until"`
		}
	}
	eventResponse struct {
		ID, Batch, Task, Token int64
		At                     *time.Time
		Kind, Actor            string
		ActorKind              string `json:"actor_kind"`
		BatchName              string `json:"batch_name"`
		Pool, Device           string
		Detail                 string
	}
	deviceResponse struct {
		ID       string
		Created  *time.Time `json:"created_at"`
		LastSeen *time.Time `json:"last_seen"`
	}
)

func readAPI[T any](x *experiment, r *replica, path string) (answer T) {
	x.t.Helper()
	request, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	must.Succeed(x.t, err)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	response, err := (&http.Client{Timeout: recoveryLimit}).Do(request)
	must.Succeed(x.t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		x.t.Fatalf("%s: %s", path, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		x.t.Fatalf("%s: %v", path, err)
	}
	return answer
}

func (x *experiment) poolListValues(r *replica) pageValues {
	s := pageValues{}
	for _, p := range readAPI[struct{ Pools []poolResponse }](x, r, "/v1/pools").Pools {
		id := "pool-" + p.Name
		s[id+"/figure"] = fmt.Sprintf("%d / %d held", p.Held, p.Capacity)
		s[id+"/devices in line"], s[id+"/oldest"] = groupDigits(p.Waiting), timeText(p.Oldest)
		s[id+"/cells"] = p.Held
	}
	return s
}

// reservedValues returns how many slots Redis reserves in each pool.
func (x *experiment) reservedValues(r *replica) pageValues {
	s := pageValues{}
	for _, p := range readAPI[struct{ Pools []poolResponse }](x, r, "/v1/pools").Pools {
		s["pool-"+p.Name+"/reserved"] = readAPI[slotsResponse](x, r, "/v1/pools/"+p.Name+"/slots").Reserved
	}
	return s
}

func (x *experiment) poolValues(r *replica) pageValues {
	p, o := readAPI[poolResponse](x, r, "/v1/pools/"+pool), readAPI[slotsResponse](x, r, "/v1/pools/"+pool+"/slots")
	s := pageValues{
		"pool-head/held": fmt.Sprintf("%d / %d", o.Held, o.Capacity), "pool-head/devices in line": groupDigits(o.Waiting), "pool-head/oldest": timeText(o.Oldest),
		"pool-head/lease": fmt.Sprintf("%d min", p.LeaseMS/60_000), "count/reserved": o.Reserved,
	}
	s["count/free"] = len(o.Slots) - o.Held - o.Reserved // can be more than the capacity allows, while more slots are held than the capacity
	s["pool-head/reserved"] = o.Reserved
	for _, slot := range o.Slots {
		id := fmt.Sprintf("slot-%d", slot.Slot)
		if slot.State != "held" {
			s[id] = slot.State
			continue
		}
		s[id] = fmt.Sprint(slot.Device, " ", slot.Task, " ", slot.Token, " ", slot.Since.UnixMilli(), " ", slot.LeaseUntil.UnixMilli())
		row := fmt.Sprintf("h%d-%d/", slot.Slot, slot.Token)
		s[row+"Slot"], s[row+"Device"], s[row+"Task"], s[row+"Token"] = slot.Slot, slot.Device, slot.Task, slot.Token
		s[row+"Since"], s[row+"Expires"] = timeText(slot.Since), timeText(slot.LeaseUntil)
	}
	return s
}

// endedTasks returns the number of tasks that will not run any more.
func (b batchDetails) endedTasks() int64 {
	return b.Total - b.Counts["pending"] - b.Counts["dispatched"]
}

// progressText returns the text that the progress bar of a batch must show.
func (b batchDetails) progressText() string {
	var parts []string
	for _, state := range []string{"succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed", "dispatched", "pending"} {
		if n := b.Counts[state]; n > 0 {
			parts = append(parts, fmt.Sprint(n, " ", stateText(state)))
		}
	}
	return strings.Join(parts, " ")
}

// shownState returns the state of the batch that a page shows.
func (b batchDetails) shownState() string {
	return operators.Batch{Condition: b.Condition, Counts: b.Counts}.ShownState()
}

// addPace adds the rate of a batch and its estimated end. Both change with time, by at most a twentieth during the
// seconds in which a page is read.
func (b batchDetails) addPace(s pageValues, rate, ends string) {
	if b.Rate == nil {
		s[rate] = "–"
	} else {
		s[rate] = nearNumber{*b.Rate, 0.06 + *b.Rate/20}
	}
	s[ends] = timeText(b.ETA)
	if b.shownState() == "waiting" {
		s[ends] = timeText(nil)
	} else if b.ETA != nil {
		s[ends] = nearNumber{float64(b.ETA.UnixMilli()) / 1000, 5 + time.Until(*b.ETA).Abs().Seconds()/20}
	}
}

func (x *experiment) batchListValues(r *replica) pageValues {
	s := pageValues{}
	for _, b := range readAPI[struct{ Batches []batchDetails }](x, r, "/v1/batches").Batches {
		id := fmt.Sprintf("batch-%d/", b.ID)
		s[id+"Pool"], s[id+"State"], s[id+"progress"] = b.Pool, stateText(b.shownState()), b.progressText()
		s[id+"Done"], s[id+"Failed"] = fmt.Sprintf("%s / %s", groupDigits(b.endedTasks()), groupDigits(b.Total)), groupDigits(b.Counts["failed"]+b.Counts["timed_out"])
		b.addPace(s, id+"Per min", id+"Ends")
	}
	return s
}

func (x *experiment) batchValues(id int64) func(r *replica) pageValues {
	return func(r *replica) pageValues {
		b := readAPI[batchDetails](x, r, fmt.Sprintf("/v1/batches/%d", id))
		s := pageValues{"batch/Number": b.ID, "batch/Weight": b.Weight, "batch/Priority": b.Priority, "batch/progress": b.progressText(), "count/all": groupDigits(b.Total)}
		for _, state := range []string{"pending", "dispatched", "succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed"} {
			s["count/"+stateText(state)] = groupDigits(b.Counts[state])
		}
		b.addPace(s, "batch/Per minute", "batch/Ends")
		waiting := readAPI[operators.Waiting](x, r, fmt.Sprintf("/v1/batches/%d/waiting", id)).Parts
		if len(waiting) > 0 && !slices.ContainsFunc(waiting, func(p operators.WaitingPart) bool { return decision.PassesByItself(decision.Code(p.Code)) }) {
			s["batch/Ends"] = timeText(nil) // none of the waiting tasks can start
		}
		errors := map[string]int{}
		for _, state := range []string{"failed", "timed_out"} {
			for _, t := range readAPI[struct{ Tasks []taskResponse }](x, r, fmt.Sprintf("/v1/tasks?page_size=1000&batch=%d&state=%s", id, state)).Tasks {
				errors[t.Error]++
			}
		}
		for i, text := range mostFrequentFirst(errors) {
			s[fmt.Sprintf("batch/line %d", i)] = fmt.Sprint(errors[text], " ", text)
			if text == "" {
				s[fmt.Sprintf("batch/line %d", i)] = fmt.Sprint(errors[text], " no text")
			}
		}
		return s
	}
}

// mostFrequentFirst returns the texts in the order of their counts, the most frequent text first.
func mostFrequentFirst(counts map[string]int) []string {
	var texts []string
	for text := range counts {
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	return texts
}

func (x *experiment) taskListValues(filter string) func(r *replica) pageValues {
	return func(r *replica) pageValues {
		s, all := pageValues{}, map[string]int64{}
		for _, b := range readAPI[struct{ Batches []batchDetails }](x, r, "/v1/batches").Batches {
			all["all"] += b.Total
			for state, n := range b.Counts {
				all[stateText(state)] += n
			}
		}
		for _, state := range []string{"all", "pending", "dispatched", "succeeded", "failed", "timed out", "cancelled", "expired", "suppressed"} {
			s["count/"+state] = groupDigits(all[state])
		}
		for _, t := range readAPI[struct{ Tasks []taskResponse }](x, r, "/v1/tasks?page_size=50&"+filter).Tasks {
			id := fmt.Sprintf("task-%d/", t.ID)
			s[id+"Task"], s[id+"State"], s[id+"Device"], s[id+"Batch"], s[id+"Pool"] = t.ID, stateText(t.State), t.Device, t.Batch, t.Pool
			s[id+"Attempts"], s[id+"Ended"], s[id+"Error"] = t.Counted, timeText(t.Finished), t.Error
		}
		return s
	}
}

func (x *experiment) taskValues(id int64) func(r *replica) pageValues {
	return func(r *replica) pageValues {
		t := readAPI[taskResponse](x, r, fmt.Sprintf("/v1/tasks/%d", id))
		s := pageValues{"task/Device": t.Device, "task/Batch": t.Batch, "task/Pool": t.Pool, "task/state": stateText(t.State)}
		for i, a := range t.Attempts {
			s[fmt.Sprintf("attempts/line %d", i)] = fmt.Sprint(a.Attempt, " ", stateText(a.EndedBy), " ", a.Slot, " ", timeText(a.Granted), " ", timeText(a.Ended), " ", a.Token, " ", a.Error)
		}
		if g := t.Grant; g != nil {
			s["task/Token"], s["task/Attempt"], s["task/Since"], s["task/Lease ends"] = g.Token, g.Attempt, timeText(g.Granted), timeText(g.LeaseUntil)
		}
		x.addEventValues(s, r, fmt.Sprintf("task=%d&page_size=20", id))
		return s
	}
}

func (x *experiment) deviceValues(id string) func(r *replica) pageValues {
	return func(r *replica) pageValues {
		d, s := readAPI[deviceResponse](x, r, "/v1/devices/"+id), pageValues{}
		s["device/Last seen"], s["device/Created"] = timeText(d.LastSeen), timeText(d.Created)
		x.addEventValues(s, r, "device="+id+"&page_size=50")
		return s
	}
}

func (x *experiment) deviceListValues(r *replica) pageValues {
	s := pageValues{}
	for _, d := range readAPI[struct{ Devices []deviceResponse }](x, r, "/v1/devices?page_size=50").Devices {
		s["device-"+d.ID+"/Last seen"], s["device-"+d.ID+"/Created"] = timeText(d.LastSeen), timeText(d.Created)
	}
	return s
}

func (x *experiment) activityValues(r *replica) pageValues {
	s := pageValues{}
	x.addEventValues(s, r, "page_size=100")
	return s
}

func (x *experiment) addEventValues(s pageValues, r *replica, filter string) {
	for _, e := range readAPI[struct{ Events []eventResponse }](x, r, "/v1/events?"+filter).Events {
		id := fmt.Sprintf("event-%d/", e.ID)
		var about []string
		for _, part := range []struct {
			word string
			n    int64
			text string
		}{{text: e.Pool}, {word: "batch ", n: e.Batch, text: e.BatchName}, {word: "task ", n: e.Task}, {text: e.Device}, {word: "token ", n: e.Token}} {
			if part.n != 0 && (part.word != "batch " || e.BatchName == "") {
				part.text = part.word + strconv.FormatInt(part.n, 10)
			}
			if part.text != "" {
				about = append(about, part.text)
			}
		}
		s[id+"When"], s[id+"Event"], s[id+"Actor"] = timeText(e.At), e.Kind, e.ActorKind+" "+e.Actor
		s[id+"About"], s[id+"Detail"] = strings.Join(about, " "), strings.Join(strings.Fields(e.Detail), " ")
	}
}

// systemValues returns the checks of /readyz and the replicas that the ledger knows.
func (x *experiment) systemValues(r *replica) pageValues {
	s := pageValues{}
	for name, state := range readAPI[struct{ Checks map[string]string }](x, r, "/readyz").Checks {
		s["system/"+name] = "✓ " + state
	}
	rows, err := x.db.QueryContext(x.t.Context(), `SELECT id, version, started_at FROM replicas`)
	must.Succeed(x.t, err)
	defer rows.Close()
	for rows.Next() {
		var id, version string
		var started time.Time
		must.Succeed(x.t, rows.Scan(&id, &version, &started))
		s["replica-"+id+"/Version"], s["replica-"+id+"/Started"] = version, timeText(&started)
	}
	must.Succeed(x.t, rows.Err())
	return s
}

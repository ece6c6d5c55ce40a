package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// said holds the values that a page must show according to the operators' API, by their place on the page. A near value is not exact,
// because it changes with time.
type said map[string]any

// near is a number that a page may show a little later, so with a tolerance.
type near struct{ value, within float64 }

// differs returns the places at which a page does not show the expected value.
func (s said) differs(shown map[string]string) []string {
	var list []string
	for place, want := range s {
		got, there := shown[place]
		ok := there && got == fmt.Sprint(want)
		if n, isNear := want.(near); isNear {
			ok = n.is(got)
		}
		if !ok {
			list = append(list, fmt.Sprintf("%s is %q, want %v", place, got, want))
		}
	}
	slices.Sort(list)
	return list
}

// num formats a value as pages do: five or six digits are grouped.
func num(v any) string {
	text := fmt.Sprint(v)
	if _, err := strconv.Atoi(text); err != nil || len(text) < 5 || len(text) > 6 {
		return text
	}
	return text[:len(text)-3] + " " + text[len(text)-3:]
}

// exact returns the values that do not change by themselves.
func (s said) exact() said {
	left := said{}
	for place, want := range s {
		if _, isNear := want.(near); !isNear {
			left[place] = want
		}
	}
	return left
}

func (n near) is(got string) bool {
	value, err := strconv.ParseFloat(got, 64)
	if at, timeErr := time.Parse(time.RFC3339, got); timeErr == nil {
		value, err = float64(at.UnixMilli())/1000, nil
	}
	return err == nil && value >= n.value-n.within && value <= n.value+n.within
}

// Answers of the API, with the fields that are compared.
type (
	poolSaid struct {
		Name     string
		Capacity int
		LeaseMS  int64 `json:"lease_ms"`
		Held     int
		Waiting  int
		Oldest   *time.Time `json:"oldest_pending_at"`
	}
	slotsSaid struct {
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
	batchSaid struct {
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
	taskSaid struct {
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
	eventSaid struct {
		ID, Batch, Task, Token int64
		At                     *time.Time
		Kind, Actor            string
		Pool, Device           string
		Detail                 string
	}
	deviceSaid struct {
		ID       string
		Created  *time.Time `json:"created_at"`
		LastSeen *time.Time `json:"last_seen"`
	}
)

// ask sends a request to the operators' API of a replica.
func ask[T any](x *experiment, r *replica, path string) (answer T) {
	x.t.Helper()
	request, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	response, err := (&http.Client{Timeout: recoveryLimit}).Do(request)
	if err != nil {
		x.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		x.t.Fatalf("%s: %s", path, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		x.t.Fatalf("%s: %v", path, err)
	}
	return answer
}

func (x *experiment) poolsSaid(r *replica) said {
	s := said{}
	for _, p := range ask[struct{ Pools []poolSaid }](x, r, "/v1/pools").Pools {
		id := "pool-" + p.Name
		s[id+"/figure"] = fmt.Sprintf("%d / %d held", p.Held, p.Capacity)
		s[id+"/waiting"], s[id+"/oldest"] = num(p.Waiting), shown(p.Oldest)
		s[id+"/cells"] = p.Held
	}
	return s
}

// reservedSaid returns the number of slots that Redis reserves in each pool.
func (x *experiment) reservedSaid(r *replica) said {
	s := said{}
	for _, p := range ask[struct{ Pools []poolSaid }](x, r, "/v1/pools").Pools {
		s["pool-"+p.Name+"/reserved"] = ask[slotsSaid](x, r, "/v1/pools/"+p.Name+"/slots").Reserved
	}
	return s
}

func (x *experiment) poolSaid(r *replica) said {
	p, o := ask[poolSaid](x, r, "/v1/pools/"+pool), ask[slotsSaid](x, r, "/v1/pools/"+pool+"/slots")
	s := said{
		"pool-head/held": fmt.Sprintf("%d / %d", o.Held, o.Capacity), "pool-head/waiting": num(o.Waiting), "pool-head/oldest": shown(o.Oldest),
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
		s[row+"Since"], s[row+"Expires"] = shown(slot.Since), shown(slot.LeaseUntil)
	}
	return s
}

// ended returns the number of tasks that will not run any more.
func (b batchSaid) ended() int64 { return b.Total - b.Counts["pending"] - b.Counts["dispatched"] }

// progress returns the text of the progress bar.
func (b batchSaid) progress() string {
	var parts []string
	for _, state := range []string{"succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed", "dispatched", "pending"} {
		if n := b.Counts[state]; n > 0 {
			parts = append(parts, fmt.Sprint(n, " ", words(state)))
		}
	}
	return strings.Join(parts, " ")
}

// pace adds the rate and the estimated end. Both change with time: by at most a twentieth during the seconds in which a page is read.
func (b batchSaid) pace(s said, rate, ends string) {
	if b.Rate == nil {
		s[rate] = "–"
	} else {
		s[rate] = near{*b.Rate, 0.06 + *b.Rate/20}
	}
	s[ends] = shown(b.ETA)
	if b.ETA != nil {
		s[ends] = near{float64(b.ETA.UnixMilli()) / 1000, 5 + time.Until(*b.ETA).Abs().Seconds()/20}
	}
}

func (x *experiment) batchesSaid(r *replica) said {
	s := said{}
	for _, b := range ask[struct{ Batches []batchSaid }](x, r, "/v1/batches").Batches {
		id := fmt.Sprintf("batch-%d/", b.ID)
		s[id+"Pool"], s[id+"State"], s[id+"progress"] = b.Pool, words(b.Condition), b.progress()
		s[id+"Done"], s[id+"Failed"] = fmt.Sprintf("%s / %s", num(b.ended()), num(b.Total)), num(b.Counts["failed"]+b.Counts["timed_out"])
		b.pace(s, id+"Per min", id+"Ends")
	}
	return s
}

func (x *experiment) batchSaid(id int64) func(r *replica) said {
	return func(r *replica) said {
		b := ask[batchSaid](x, r, fmt.Sprintf("/v1/batches/%d", id))
		s := said{"batch/Number": b.ID, "batch/Weight": b.Weight, "batch/Priority": b.Priority, "batch/progress": b.progress(), "count/all": num(b.Total)}
		for _, state := range []string{"pending", "dispatched", "succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed"} {
			s["count/"+words(state)] = num(b.Counts[state])
		}
		b.pace(s, "batch/Per minute", "batch/Ends")
		errors := map[string]int{}
		for _, state := range []string{"failed", "timed_out"} {
			for _, t := range ask[struct{ Tasks []taskSaid }](x, r, fmt.Sprintf("/v1/tasks?page_size=1000&batch=%d&state=%s", id, state)).Tasks {
				errors[t.Error]++
			}
		}
		for i, text := range byCount(errors) {
			s[fmt.Sprintf("batch/line %d", i)] = fmt.Sprint(errors[text], " ", text)
			if text == "" {
				s[fmt.Sprintf("batch/line %d", i)] = fmt.Sprint(errors[text], " no text")
			}
		}
		return s
	}
}

// byCount returns the texts, the most frequent first.
func byCount(counts map[string]int) []string {
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

func (x *experiment) tasksSaid(filter string) func(r *replica) said {
	return func(r *replica) said {
		s, all := said{}, map[string]int64{}
		for _, b := range ask[struct{ Batches []batchSaid }](x, r, "/v1/batches").Batches {
			all["all"] += b.Total
			for state, n := range b.Counts {
				all[words(state)] += n
			}
		}
		for _, state := range []string{"all", "pending", "dispatched", "succeeded", "failed", "timed out", "cancelled", "expired", "suppressed"} {
			s["count/"+state] = num(all[state])
		}
		for _, t := range ask[struct{ Tasks []taskSaid }](x, r, "/v1/tasks?page_size=50&"+filter).Tasks {
			id := fmt.Sprintf("task-%d/", t.ID)
			s[id+"Task"], s[id+"State"], s[id+"Device"], s[id+"Batch"], s[id+"Pool"] = t.ID, words(t.State), t.Device, t.Batch, t.Pool
			s[id+"Attempts"], s[id+"Ended"], s[id+"Error"] = t.Counted, shown(t.Finished), t.Error
		}
		return s
	}
}

func (x *experiment) taskSaid(id int64) func(r *replica) said {
	return func(r *replica) said {
		t := ask[taskSaid](x, r, fmt.Sprintf("/v1/tasks/%d", id))
		s := said{"task/Device": t.Device, "task/Batch": t.Batch, "task/Pool": t.Pool, "task/state": words(t.State)}
		for i, a := range t.Attempts {
			s[fmt.Sprintf("attempts/line %d", i)] = fmt.Sprint(a.Attempt, " ", words(a.EndedBy), " ", a.Slot, " ", shown(a.Granted), " ", shown(a.Ended), " ", a.Token, " ", a.Error)
		}
		if g := t.Grant; g != nil {
			s["task/Token"], s["task/Attempt"], s["task/Since"], s["task/Lease ends"] = g.Token, g.Attempt, shown(g.Granted), shown(g.LeaseUntil)
		}
		x.eventsSaid(s, r, fmt.Sprintf("task=%d&page_size=20", id))
		return s
	}
}

func (x *experiment) deviceSaid(id string) func(r *replica) said {
	return func(r *replica) said {
		d, s := ask[deviceSaid](x, r, "/v1/devices/"+id), said{}
		s["device/Last seen"], s["device/Created"] = shown(d.LastSeen), shown(d.Created)
		x.eventsSaid(s, r, "device="+id+"&page_size=50")
		return s
	}
}

func (x *experiment) devicesSaid(r *replica) said {
	s := said{}
	for _, d := range ask[struct{ Devices []deviceSaid }](x, r, "/v1/devices?page_size=50").Devices {
		s["device-"+d.ID+"/Last seen"], s["device-"+d.ID+"/Created"] = shown(d.LastSeen), shown(d.Created)
	}
	return s
}

func (x *experiment) activitySaid(r *replica) said {
	s := said{}
	x.eventsSaid(s, r, "page_size=100")
	return s
}

func (x *experiment) eventsSaid(s said, r *replica, filter string) {
	for _, e := range ask[struct{ Events []eventSaid }](x, r, "/v1/events?"+filter).Events {
		id := fmt.Sprintf("event-%d/", e.ID)
		var about []string
		for _, part := range []struct {
			word string
			n    int64
			text string
		}{{text: e.Pool}, {word: "batch ", n: e.Batch}, {word: "task ", n: e.Task}, {text: e.Device}, {word: "token ", n: e.Token}} {
			if part.n != 0 {
				part.text = part.word + strconv.FormatInt(part.n, 10)
			}
			if part.text != "" {
				about = append(about, part.text)
			}
		}
		s[id+"When"], s[id+"Event"], s[id+"Actor"] = shown(e.At), e.Kind, e.Actor
		s[id+"About"], s[id+"Detail"] = strings.Join(about, " "), strings.Join(strings.Fields(e.Detail), " ")
	}
}

// systemSaid returns the checks of /readyz, and the replicas in the ledger.
func (x *experiment) systemSaid(r *replica) said {
	s := said{}
	for name, state := range ask[struct{ Checks map[string]string }](x, r, "/readyz").Checks {
		s["system/"+name] = "✓ " + state
	}
	rows, err := x.db.QueryContext(x.t.Context(), `SELECT id, version, started_at FROM replicas`)
	if err != nil {
		x.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, version string
		var started time.Time
		if err := rows.Scan(&id, &version, &started); err != nil {
			x.t.Fatal(err)
		}
		s["replica-"+id+"/Version"], s["replica-"+id+"/Started"] = version, shown(&started)
	}
	if err := rows.Err(); err != nil {
		x.t.Fatal(err)
	}
	return s
}

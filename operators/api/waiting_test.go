package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// createWaitingTasks creates a pool in which seven tasks wait for four different reasons.
func (b *testAPI) createWaitingTasks() (batches []int64) {
	b.Helper()
	b.PutPool("p", `{"capacity":5,"limits":[{"name":"per-account","per":"tags.account","algorithm":"sliding","windows":[{"max":1,"per_ms":3600000}]}]}`)
	for _, device := range []string{"d-1", "d-2", "d-3", "d-4"} {
		b.Call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":%q,"tags":{"account":"x"}}`, device)).Expect(201)
	}
	for _, device := range []string{"d-2", "d-3", "d-4", "d-5", "d-6"} { // of these devices it is known that they report
		b.SendReport(device, `{"accept":false}`).Expect(200)
	}
	batches = append(batches, b.CreateBatch(`{"pool":"p","devices":["d-1"]}`))
	b.ReportUntilGranted("d-1")
	for _, body := range []string{
		`{"pool":"p","devices":["d-2","d-3"]}`, `{"pool":"p","devices":["d-4","d-5","d-6"],"windows":[` + windowJSON(5, 2) + `]}`, `{"pool":"p","devices":["d-7"]}`, `{"pool":"p","devices":["d-8"]}`,
	} {
		batches = append(batches, b.CreateBatch(body))
	}
	b.Call("POST", fmt.Sprintf("/v1/batches/%d/pause", batches[3]), adminToken, nil).Expect(200)
	return batches
}

func TestWaitingAddsUpAndLists(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		batches := b.createWaitingTasks()
		for path, want := range map[string]map[string]int64{
			"/v1/pools/p/waiting":                             {"limited": 2, "batch_window": 3, "batch_paused": 1, "device_unknown": 1},
			fmt.Sprintf("/v1/batches/%d/waiting", batches[1]): {"limited": 2},
			fmt.Sprintf("/v1/batches/%d/waiting", batches[2]): {"batch_window": 3},
			fmt.Sprintf("/v1/batches/%d/waiting", batches[0]): {},
			fmt.Sprintf("/v1/batches/%d/waiting", batches[4]): {"device_unknown": 1},
			"/v1/pools/p/waiting?":                            {"limited": 2, "batch_window": 3, "batch_paused": 1, "device_unknown": 1},
		} {
			var said operators.Waiting
			b.Call("GET", path, b.createToken("viewer"), nil).Expect(200).Decode(&said)
			sum := int64(0)
			for _, p := range said.Parts {
				sum += p.Count
				if p.Count != want[p.Code] || p.Label == "" || p.Detail == "" || p.Remedy == "" || len(p.Examples) == 0 {
					b.Errorf("%s: %+v, want %d", path, p, want[p.Code])
				}
				if known := p.Code == "limited" || p.Code == "batch_window"; known != (p.Until != nil) {
					b.Errorf("%s: %s until %v", path, p.Code, p.Until)
				}
				b.expectListedReasons(strings.TrimSuffix(path, "?"), p)
			}
			if len(said.Parts) != len(want) || sum != said.Total || int64(said.Evaluated) != said.Total || said.Sampled {
				b.Errorf("%s: %+v", path, said)
			}
		}
		if text := string(b.Get("/v1/pools/p/waiting").Body); !strings.Contains(text, `"label":"limited (1 per 1h by per-account)"`) {
			b.Errorf("answered %s", text)
		}
		b.Call("POST", "/v1/pools/p/pause", adminToken, `{"reason":"it smokes"}`).Expect(200)
		var said operators.Waiting
		b.Get("/v1/pools/p/waiting").Expect(200).Decode(&said)
		if len(said.Parts) != 1 || said.Parts[0].Code != "pool_paused" || !strings.HasSuffix(said.Parts[0].Detail, "because: it smokes") || said.Parts[0].Remedy != "resume the pool: dispatcher pools resume p" {
			b.Errorf("paused: %+v", said)
		}
	})
}

// The summary of waiting tasks has one part for each reason. The actions of a part help all of its tasks. Actions
// that help only some of them are listed with these tasks.
func TestActionsOfAPartHelpAll(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":5}`)
	for _, device := range []string{"d-1", "d-2"} {
		batch := b.CreateBatch(`{"pool":"p","devices":["` + device + `"]}`)
		b.Call("POST", fmt.Sprintf("/v1/batches/%d/pause", batch), adminToken, nil).Expect(200)
	}
	expect := func(path, want string) {
		b.Helper()
		var said operators.Waiting
		b.Get(path).Expect(200).Decode(&said)
		if len(said.Parts) != 1 || fmt.Sprint(said.Parts[0].Actions) != want {
			b.Errorf("%s: %+v, want %s", path, said.Parts, want)
		}
	}
	expect("/v1/pools/p/waiting", "[]")
	expect("/v1/batches/2/waiting", "[{resume batch 2 dispatcher batches resume 2}]")
	list := string(b.Get("/v1/pools/p/waiting/tasks").Expect(200).Body)
	for _, id := range []string{"1", "2"} {
		if want := `"actions":[{"action":"resume","subject":"batch","id":"` + id + `"`; !strings.Contains(list, want) {
			b.Errorf("%s is not in %s", want, list)
		}
	}
	b.Call("POST", "/v1/pools/p/pause", adminToken, nil).Expect(200)
	expect("/v1/pools/p/waiting", "[{resume pool p dispatcher pools resume p}]")
}

// expectListedReasons lists the tasks of a part of the summary, in pages and as a stream. It compares the reason of
// each task with the answer of `why` for the task.
func (b *testAPI) expectListedReasons(path string, p operators.WaitingPart) {
	b.Helper()
	list := path + "/tasks?code=" + p.Code
	ids := b.readPages(list, "tasks", "id")
	if int64(len(ids)) != p.Count || countEntries(b.getWithAccept(list, csvType).Expect(200), csvType) != len(ids) {
		b.Errorf("%s: %d are listed of %d", list, len(ids), p.Count)
	}
	for _, id := range ids {
		var why operators.Why
		b.Get("/v1/tasks/" + id + "/why").Expect(200).Decode(&why)
		if why.Reasons[0].Code != p.Code {
			b.Errorf("%s has task %s, which waits for %+v", list, id, why.Reasons[0])
		}
	}
}

func TestWaitingRefusesWhatItCannotList(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	batches := b.createWaitingTasks()
	for _, path := range []string{"/v1/pools/none/waiting", "/v1/batches/4711/waiting", "/v1/pools/none/waiting/tasks", "/v1/batches/4711/waiting/tasks"} {
		b.Get(path).ExpectProblem(404, "not_found")
	}
	if p := b.Get("/v1/pools/p/waiting/tasks?code=running").ExpectProblem(422, "invalid_field"); !strings.Contains(p.Detail, `code: "running"`) {
		b.Errorf("%+v", p)
	}
	b.expectPageErrors("/v1/pools/p/waiting/tasks")
	ofAnother, _ := b.Get(fmt.Sprintf("/v1/batches/%d/waiting/tasks?page_size=1", batches[1])).Expect(200).Object()["next_page_token"].(string)
	b.Get(fmt.Sprintf("/v1/batches/%d/waiting/tasks?page_token=%s", batches[1], ofAnother)).Expect(200)
	b.Get(fmt.Sprintf("/v1/batches/%d/waiting/tasks?page_token=%s", batches[2], ofAnother)).ExpectProblem(422, "invalid_field", "page_token")
	b.Call("GET", "/v1/pools/p/waiting", b.createToken("verifier"), nil).ExpectProblem(403, "forbidden")
}

// A batch cannot start tasks. Its condition is then not running, but names the cause.
func TestTheConditionOfABatch(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":5,"lease_ms":60000}`)
		id := b.CreateBatch(newBatchBody)
		expect := func(state, condition string) {
			b.Helper()
			one := b.Get(fmt.Sprintf("/v1/batches/%d", id)).Expect(200).Object()
			listed := asObject(listField(b.Get("/v1/batches").Expect(200).Object(), "batches")[0])
			if one["state"] != state || one["condition"] != condition || listed["condition"] != condition || condition != "running" && one["eta"] != nil {
				b.Errorf("%v, %v, in the list %v; want %s, %s", one["state"], one["condition"], listed["condition"], state, condition)
			}
		}
		expect("running", "running")
		b.Call("POST", "/v1/pools/p/pause", adminToken, nil).Expect(200)
		expect("running", "held_up")
		b.Call("POST", "/v1/pools/p/resume", adminToken, nil).Expect(200)
		b.Call("PATCH", "/v1/pools/p", adminToken, `{"windows":[`+windowJSON(5, 2)+`]}`).Expect(200)
		expect("running", "scheduled")
		b.Call("PATCH", "/v1/pools/p", adminToken, `{"windows":null,"capacity":0}`).Expect(200)
		expect("running", "held_up")
		b.Call("PATCH", "/v1/pools/p", adminToken, `{"capacity":5}`).Expect(200)
		shut := b.Call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{"windows":[`+windowJSON(5, 2)+`]}`).Expect(200).Object()
		if shut["condition"] != "scheduled" {
			b.Errorf("changed to %v", shut["condition"])
		}
		expect("running", "scheduled")
		b.Call("POST", fmt.Sprintf("/v1/batches/%d/pause", id), adminToken, nil).Expect(200)
		expect("paused", "paused")
		b.Call("POST", fmt.Sprintf("/v1/batches/%d/cancel", id), adminToken, nil).Expect(200)
		if now := b.Get(fmt.Sprintf("/v1/batches/%d", id)).Object(); now["condition"] != now["state"] {
			b.Errorf("%v", now)
		}
	})
}

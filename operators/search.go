package operators

// Hit is one pool, batch, task or device that a search found.
type Hit struct {
	Kind string `json:"kind" enum:"pool,batch,task,device"`
	ID   string `json:"id" doc:"Name of a pool, id of a device, number of a batch or task"`
	Text string `json:"text" doc:"Name of a batch, error of a task, tags of a device, held slots of a pool; can be empty"`
}

// FoundPart contains the hits of one kind of search.
type FoundPart struct {
	Hits    []Hit `json:"hits" maxItems:"10"`
	More    bool  `json:"more" doc:"true: there are more; the list with the same filter returns them"`
	Scanned int   `json:"looked_at,omitempty" doc:"Number of entries that were searched, if not all were; absent: all were searched"`
}

// Found contains the results of a search for a text. Each part has at most 10 hits.
type Found struct {
	Text    string    `json:"q"`
	Exact   FoundPart `json:"exact" doc:"The task, batch, device and pool with exactly this number, id or name"`
	Pools   FoundPart `json:"pools" doc:"Pools with the text in their names"`
	Batches FoundPart `json:"batches" doc:"Batches with the text in their names, newest first"`
	Devices FoundPart `json:"devices" doc:"Devices whose ids begin with the text, then devices with the text elsewhere in their ids"`
	Tagged  FoundPart `json:"tagged" doc:"Devices with this tag, if the text is name:value"`
	Failed  FoundPart `json:"failed" doc:"Tasks that failed or timed out and whose errors begin with the text, newest batches first"`
}

// Distinct returns f without repeated hits: each hit stays only in the first part that contains it. It is for people, who read the parts as
// one list.
func (f Found) Distinct() Found {
	type id struct{ kind, id string }
	shown := map[id]bool{}
	for _, part := range []*FoundPart{&f.Exact, &f.Pools, &f.Batches, &f.Devices, &f.Tagged, &f.Failed} {
		hits := make([]Hit, 0, len(part.Hits))
		for _, h := range part.Hits {
			if !shown[id{h.Kind, h.ID}] {
				shown[id{h.Kind, h.ID}] = true
				hits = append(hits, h)
			}
		}
		part.Hits = hits
	}
	return f
}

// FindQuery has the text to search for.
type FindQuery struct {
	Text string `query:"q" required:"true" minLength:"1" maxLength:"200" doc:"Part of the name of a pool or batch, part of the id of a device, a number, a tag as name:value, or the beginning of an error"`
}

// Search has the call that searches pools, batches, tasks and devices.
type Search struct {
	Find Call[FindQuery, Found] `op:"GET /v1/find" id:"find" role:"viewer" doc:"Find pools, batches, tasks and devices by a text"`
}

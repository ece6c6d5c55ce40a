package operators

// Waiting summarizes why the tasks of a pool or of a batch wait, grouped by reason.
type Waiting struct {
	Total     int64         `json:"total" doc:"Tasks that wait"`
	Evaluated int           `json:"judged" doc:"Of these, as many were judged"`
	Sampled   bool          `json:"sampled" doc:"true: not all of them were judged, and the counts are those of a sample, brought up to the total"`
	Parts     []WaitingPart `json:"parts" doc:"Their counts add up to total; the largest first"`
}

// WaitingPart is the group of tasks that wait for the same reason.
type WaitingPart struct {
	Code     string           `json:"code" doc:"As the first reason of why of each of them"`
	Label    string           `json:"label" doc:"A few words, for people"`
	Count    int64            `json:"count"`
	Detail   string           `json:"detail" doc:"For people; where it differs from task to task that of one"`
	Until    *Time            `json:"until" nullable:"true" doc:"When the first of them may go on by itself; null: unknown"`
	Remedy   string           `json:"remedy" doc:"Remedy, for people"`
	Actions  []Action         `json:"actions" doc:"What helps each of them; may be empty"`
	Examples []WaitingExample `json:"examples" doc:"Up to three of them"`
}

// WaitingExample is one task of a WaitingPart.
type WaitingExample struct {
	Task   int64  `json:"task"`
	Device string `json:"device"`
}

// WaitingTask is a waiting task and the first reason why it waits.
type WaitingTask struct {
	ID      int64    `json:"id"`
	Batch   int64    `json:"batch"`
	Device  string   `json:"device"`
	Code    string   `json:"code"`
	Detail  string   `json:"detail"`
	Until   *Time    `json:"until" nullable:"true"`
	Remedy  string   `json:"remedy"`
	Actions []Action `json:"actions"`
}

// WaitingTaskList is a page of waiting tasks.
type WaitingTaskList struct {
	Tasks         []WaitingTask `json:"tasks"`
	NextPageToken string        `json:"next_page_token,omitempty"`
}

invoke() { case $(cat) in *crash*) kill -9 $$ ;; esac; echo "{\"outputs\": {\"pid\": $$}}"; }
